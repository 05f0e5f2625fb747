"""Faults of a simulated engine: what can be set, checked strictly. Pure.

A document names faults; those it does not name stay as they are, and `null` heals one:

    {"slow": {"factor": 17}}                            every step takes 17 times as long
    {"slow": {"ttft_ms": 3500, "probability": 0.2}}     first token after 3,500 ms for one request in five
    {"fail_fast": {"probability": 0.3}}                 500 at once
    {"hang": {}}                                        accepted, never answered
    {"cut": {"after_tokens": 5, "how": "reset"}}        reset | eof | end | abort, see `CutHow`
    {"saturate": {"mode": "kv_429"}}                    status_503 | stream_error (inside a 200 stream) | kv_429
    {"limit": {"requests": 4}}                          refused while so many are unfinished; the gauges show no queue
    {"split": {"every": 3}}                             each third token has no content: it is a part of a character
    {"drain": {}}                                       /health 200, running streams finish, new requests get 500
    {"restart": {"down_s": 5}}                          drops all, refuses for 5 s, comes back cold
    {"crash": {}}                                       drops all and refuses until healed
    {"kill_core": {"exit_s": 3}}                        streams end in an error event and [DONE], /health 503, then gone
    {"stop": {}}                                        the port is closed, what runs goes silent until clients leave

Times of faults are wall-clock times, whatever the engine's speed factor is. Requests that hang or wait for a slow first
token do not reach the model; they count as running in the gauges, not as waiting, so that gauges alone do not give the
fault away. A hanging request stays without an answer after healing.
"""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

Probability = Annotated[float, Meta(ge=0, le=1)]


class FaultError(ValueError):
    """A fault document that cannot be applied; the message says where and why."""


class CutHow(StrEnum):
    """How a stream is cut."""

    RESET = "reset"
    EOF = "eof"  # no last chunk
    END = "end"  # a proper end without finish reason
    ABORT = "abort"  # finish reason `abort` and [DONE], as a vLLM that is told to stop may do: as if it were whole


class SaturateMode(StrEnum):
    """How an engine says that it is full."""

    STATUS_503 = "status_503"
    STREAM_ERROR = "stream_error"
    KV_429 = "kv_429"


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """Unknown keys are errors: a misspelt fault must not silently do nothing."""


class Slow(_Strict, frozen=True):
    """Steps `factor` times as long, or a first token not before `ttft_ms`."""

    factor: Annotated[float, Meta(gt=0, le=10_000)] = 1.0
    ttft_ms: Annotated[float, Meta(ge=0, le=3_600_000)] = 0.0
    probability: Probability = 1.0


class FailFast(_Strict, frozen=True):
    """An error status within 5 ms."""

    probability: Probability = 1.0
    status: Annotated[int, Meta(ge=500, le=599)] = 500


class Hang(_Strict, frozen=True):
    """Accepted, never answered."""

    probability: Probability = 1.0


class Cut(_Strict, frozen=True):
    """Streams are cut after some tokens."""

    after_tokens: Annotated[int, Meta(ge=0)] = 3
    how: CutHow = CutHow.RESET
    probability: Probability = 1.0


class Saturate(_Strict, frozen=True):
    """New requests are refused for want of capacity."""

    mode: SaturateMode = SaturateMode.STATUS_503
    retry_after_s: Annotated[int, Meta(ge=0, le=3600)] = 1
    probability: Probability = 1.0


class Limit(_Strict, frozen=True):
    """New requests are refused while so many are unfinished, whether they run or wait.

    This is what vLLM's `--max-num-queued-reqs` counts, in spite of its name: such an engine never shows a queue. Of the
    streams that it refuses a share gets a 200 and then the error, as those do that came together.
    """

    requests: Annotated[int, Meta(ge=0, le=100_000)] = 4
    in_stream: Probability = 0.5


class Split(_Strict, frozen=True):
    """Every so-manieth token is a part of a character: its event has no content, the next one has that of both."""

    every: Annotated[int, Meta(ge=2, le=1000)] = 3


class Drain(_Strict, frozen=True):
    """Shutting down: running streams finish, new requests fail."""


class Restart(_Strict, frozen=True):
    """Gone for a while, then cold."""

    down_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0


class Crash(_Strict, frozen=True):
    """Gone until healed."""


class KillCore(_Strict, frozen=True):
    """The engine's core dies and its API server lives on for a while: well-formed errors, then nobody."""

    exit_s: Annotated[float, Meta(ge=0, le=3600)] = 3.0


class Stop(_Strict, frozen=True):
    """Told to stop in the middle of streams: the port is closed, and the open connections say nothing more."""


class Faults(_Strict, frozen=True):
    """All faults of one engine; None is healthy."""

    slow: Slow | None = None
    fail_fast: FailFast | None = None
    hang: Hang | None = None
    cut: Cut | None = None
    saturate: Saturate | None = None
    limit: Limit | None = None
    split: Split | None = None
    drain: Drain | None = None
    restart: Restart | None = None
    crash: Crash | None = None
    kill_core: KillCore | None = None
    stop: Stop | None = None

    def merged(self, document: object) -> "Faults":
        """These faults with those of `document` set or healed.

        Raises:
            FaultError: Not an object, an unknown fault or field, or a value out of range; nothing is changed.
        """
        if not isinstance(document, dict) or not document:
            raise FaultError(f"expected an object with at least one of {', '.join(self.__struct_fields__)}")
        try:
            new = msgspec.convert(document, Faults)
        except msgspec.ValidationError as error:
            known = ", ".join(self.__struct_fields__)
            raise FaultError(f"{error}; faults are {known}") from None
        if "slow" in document and new.slow is not None and new.slow.factor == 1.0 and new.slow.ttft_ms == 0.0:
            raise FaultError("slow needs factor (other than 1) or ttft_ms - at `$.slow`")
        if new.slow is not None and new.slow.factor != 1.0 and new.slow.probability != 1.0:
            raise FaultError("slow.factor slows every step, a probability needs ttft_ms - at `$.slow.probability`")
        return msgspec.structs.replace(self, **{name: getattr(new, name) for name in document})

    @property
    def down(self) -> bool:
        """Whether one of them takes or keeps the engine down."""
        return any(each is not None for each in (self.restart, self.crash, self.kill_core, self.stop))

    def active(self) -> dict[str, Any]:
        """The faults that are set, as a plain document."""
        return {
            name: msgspec.to_builtins(value)
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        }
