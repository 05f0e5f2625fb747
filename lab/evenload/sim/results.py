"""What a run leaves behind: arrays by request and by attempt, and a digest over all of them."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import inf, nan
from typing import Final

from evenload.sim.instance import Totals
from evenload.sim.jobs import Job
from evenload.sim.scenario import Case

OPEN: Final = 0
OK: Final = 1
FAILED: Final = 2
REJECTED: Final = 3
TIMED_OUT: Final = 4
LOST: Final = 5
STATUSES: Final = ("open", "ok", "failed", "rejected", "timed_out", "lost")


@dataclass(slots=True)
class Result:
    """One run.

    Attributes:
        ttft_ms: by request, retries included; infinite unless a first token came.
        end_ms: by request, from arrival to the end.
        instance: by request, which gave the first token; -1 for none.
        healthy_ms: by request that came while a fault was on, the TTFT that a healthy instance would have given.
        attempt_ms, attempt_instance, attempt_probe: by attempt, in order of time.
        held: samples of requests held, `instances` values each second.
    """

    case: Case
    jobs: Sequence[Job]
    names: Sequence[str]
    ttft_ms: "array[float]"
    end_ms: "array[float]"
    healthy_ms: "array[float]"
    instance: "array[int]"
    status: "array[int]"
    attempt_ms: "array[float]" = field(default_factory=lambda: array("d"))
    attempt_instance: "array[int]" = field(default_factory=lambda: array("h"))
    attempt_probe: "array[int]" = field(default_factory=lambda: array("b"))
    held_ms: "array[float]" = field(default_factory=lambda: array("d"))
    held: "array[int]" = field(default_factory=lambda: array("l"))
    totals: list[Totals] = field(default_factory=list)
    choices: int = 0
    probes: int = 0
    folded_into_base: int = 0
    happened: int = 0

    @classmethod
    def empty(cls, case: Case, jobs: Sequence[Job], names: Sequence[str]) -> "Result":
        """A result in which nothing has happened yet."""
        count = len(jobs)
        return cls(
            case,
            jobs,
            names,
            ttft_ms=array("d", [inf]) * count,
            end_ms=array("d", [inf]) * count,
            healthy_ms=array("d", [nan]) * count,
            instance=array("h", [-1]) * count,
            status=array("b", [OPEN]) * count,
        )

    def chosen(self, number: int, at_ms: float, index: int, *, probe: bool) -> None:
        """Note an attempt of request `number`."""
        del number
        self.attempt_ms.append(at_ms)
        self.attempt_instance.append(index)
        self.attempt_probe.append(probe)

    def first_token(self, number: int, ttft_ms: float, index: int) -> None:
        """Note the first token of a request."""
        self.ttft_ms[number] = ttft_ms
        self.instance[number] = index

    def ended(self, number: int, status: int, took_ms: float) -> None:
        """Note the end of a request; what did not end well has no TTFT."""
        assert self.status[number] == OPEN, f"request {number} ended twice"
        self.status[number] = status
        self.end_ms[number] = took_ms
        if status != OK:
            self.ttft_ms[number] = inf

    def sampled(self, at_ms: float, held: "array[int]") -> None:
        """Note how many requests each instance holds."""
        self.held_ms.append(at_ms)
        self.held.extend(held)

    def digest(self) -> str:
        """Return 16 hex digits that differ when anything differs."""
        digest = hashlib.sha256()
        for name in ("ttft_ms", "end_ms", "healthy_ms", "instance", "status", "attempt_ms", "attempt_instance", "held"):
            digest.update(getattr(self, name).tobytes())
        counts = (self.choices, self.probes, self.happened, [asdict(total) for total in self.totals])
        digest.update(repr(counts).encode())
        return digest.hexdigest()[:16]
