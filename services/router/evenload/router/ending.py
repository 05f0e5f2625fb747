"""What is known of an attempt so far, and what its lease is finished with.

Until something else is known the end is `client_gone`, which blames nobody: that is what a cancellation leaves.
"""

from collections.abc import Callable
from typing import Any

from evenload.schemas.telemetry import OutcomeKind

from .classify import Verdict
from .ports import Lease
from .quota import LONG_QUOTA_MS


class Ending:
    """The account of one attempt.

    Args:
        lease: booked.
        clock: monotonic, seconds.
        soon: calls what it is given in the event loop's next turn.

    Attributes:
        sent_at_s: when the request was sent; times count from there.
        status: of the response, 0 before there is one.
        kind, cause: how it ended.
        ttft_ms: to the first content, None before.
        prompt_tokens: as the engine counted them, None if it did not say.
    """

    __slots__ = (
        "_clock",
        "_lease",
        "_output_tokens",
        "_retry_after_ms",
        "_soon",
        "_untold",
        "cause",
        "kind",
        "prompt_tokens",
        "sent_at_s",
        "status",
        "ttft_ms",
    )

    def __init__(self, lease: Lease, clock: Callable[[], float], soon: Callable[[Callable[[], None]], object]) -> None:
        self._lease = lease
        self._clock = clock
        self._soon = soon
        self._untold = False  # the lease does not know of the first token yet
        self.sent_at_s = clock()
        self.status = 0
        self.kind: OutcomeKind = "client_gone"
        self.cause = ""
        self._retry_after_ms: float | None = None
        self.ttft_ms: float | None = None
        self.prompt_tokens: int | None = None
        self._output_tokens = 0

    def __repr__(self) -> str:
        return f"<Ending {self.kind} {self.cause} status={self.status} ttft_ms={self.ttft_ms}>"

    @property
    def elapsed_ms(self) -> float:
        """Since the request was sent."""
        return (self._clock() - self.sent_at_s) * 1000.0

    def sent_anew(self) -> None:
        """The request is sent now, after a back-off."""
        self.sent_at_s = self._clock()

    def first_token(self) -> None:
        """The first content is there; the client gets it before the fleet is told."""
        self.ttft_ms = self.elapsed_ms
        self._untold = True
        self._soon(self._tell_first_token)

    def note(self, verdict: Verdict) -> None:
        """This is how it ends, as far as is known."""
        wait_ms = verdict.retry_after_ms
        if wait_ms is None and verdict.cause == "provider_quota":
            wait_ms = LONG_QUOTA_MS
        self.kind, self.cause, self._retry_after_ms = verdict.kind, verdict.cause, wait_ms

    def note_usage(self, prompt_tokens: Any, output_tokens: Any) -> None:
        """Take what the upstream counted, if it is a count."""
        if isinstance(prompt_tokens, int) and prompt_tokens > 0:
            self.prompt_tokens = prompt_tokens
        if isinstance(output_tokens, int) and output_tokens >= 0:
            self._output_tokens = output_tokens

    def finish(self) -> None:
        """Give the lease back."""
        try:
            self._tell_first_token()
        finally:
            self._lease.finish(
                self.kind,
                status=self.status,
                cause=self.cause,
                retry_after_ms=self._retry_after_ms,
                ttft_ms=self.ttft_ms,
                duration_ms=self.elapsed_ms,
                output_tokens=self._output_tokens,
            )

    def _tell_first_token(self) -> None:
        if self._untold and self.ttft_ms is not None:
            self._untold = False
            self._lease.first_token(self.ttft_ms)
