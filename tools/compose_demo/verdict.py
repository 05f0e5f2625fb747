"""Did it hold? Pure: what clients and observers saw in, promises with their figures out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evenload.demo.load import percentile
from evenload.demo.load_client import Outcome

NOTICE_S: Final = 5.0  # from the kill to the client's notice of it
BACK_WITHIN_S: Final = 60.0
FRESH_WITHIN_S: Final = 45.0
FRESH_MS: Final = 3000.0  # every instance is published at least every 2 s


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the client saw it; times are seconds after the start of the load.

    Attributes:
        router: The proxy's slot that had it; None if the proxy found none.
        ttft_ms: From the scheduled arrival; None if no content came.
    """

    start_s: float
    end_s: float
    outcome: Outcome
    status: int | None
    router: str | None
    ttft_ms: float | None

    @property
    def ok(self) -> bool:
        """Whether the client got a whole answer."""
        return self.outcome is Outcome.OK


@dataclass(frozen=True, slots=True)
class Kill:
    """A SIGKILL: when the command began and had returned, and what came after.

    Attributes:
        slot: The proxy's slot of a router; "" for others.
        recovered_s: When the stack was whole again; None if it was not seen.
    """

    name: str
    slot: str
    begin_s: float
    end_s: float
    recovered_s: float | None

    @property
    def took_s(self) -> float | None:
        """From the kill to the recovery."""
        return None if self.recovered_s is None else self.recovered_s - self.begin_s


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and what became of it."""

    promise: str
    held: bool
    figure: str


def was_on(request: Request, kill: Kill) -> bool:
    """Whether the request was in flight on the router when it was killed."""
    return request.router == kill.slot and request.start_s <= kill.end_s and request.end_s >= kill.begin_s


def excused(request: Request, kill: Kill) -> bool:
    """Whether the request may have failed: it was on the killed router and ended with it."""
    return was_on(request, kill) and request.end_s <= kill.end_s + NOTICE_S


def judge(requests: Sequence[Request], router: Kill, scorer: Kill) -> list[Check]:
    """Return the promises in the order in which they are told."""
    failed = [request for request in requests if not request.ok]
    other = [request for request in failed if not excused(request, router)]
    met = sum(was_on(request, router) for request in requests)
    after = [request for request in requests if request.start_s > scorer.end_s]
    return [
        Check(
            "no request fails but those that were on the killed router",
            bool(requests) and not other,
            f"{len(requests)} requests, {len(failed)} failed, {len(other)} of them elsewhere{_kinds(other)}",
        ),
        Check("the kill met requests in flight (else the first line shows little)", met > 0, f"{met} were on it"),
        _within("the killed router comes back and takes requests", router.took_s, BACK_WITHIN_S),
        _within(
            f"after the scorer's death all snapshots are fresh again (at most {FRESH_MS / 1000:.0f} s old)",
            scorer.took_s,
            FRESH_WITHIN_S,
        ),
        Check("clients are served meanwhile", bool(after), f"{len(after)} requests after the scorer's death"),
    ]


def judge_audit(report: Mapping[str, Any]) -> Check:
    """Return whether the log proves what was published and chosen; `report` is `evenload audit verify --json`.

    What died with the killed router before it reached the log cannot be recomputed; it is told, not held against it.
    """
    counts: Mapping[str, int] = report["counts"]
    same = {subject: counts.get(f"{subject} verified", 0) for subject in ("snapshot", "decision")}
    unverifiable = sum(report["unverifiable"].values())
    figure = f"{same['snapshot']} snapshots and {same['decision']} decisions the same, {unverifiable} not verifiable"
    if report["exit_code"]:
        figure += f"; exit code {report['exit_code']}: {report['first_difference'] or report['gaps']}"
    held = not report["exit_code"] and min(same.values()) > 0
    return Check("the auditor recomputes every snapshot and decision bit for bit", held, figure)


def phases(requests: Sequence[Request], router: Kill, scorer: Kill) -> list[str]:
    """Tell TTFT by phase; requests that failed count as infinite."""
    bounds = (0.0, router.begin_s, scorer.begin_s, float("inf"))
    names = ("before", "router killed", "scorer killed")
    lines = []
    for name, begin_s, end_s in zip(names, bounds, bounds[1:], strict=False):
        ttft_ms = [
            r.ttft_ms if r.ok and r.ttft_ms is not None else float("inf")
            for r in requests
            if begin_s <= r.start_s < end_s
        ]
        lines.append(
            f"{name:<14} {len(ttft_ms):>4} requests, TTFT p50 {percentile(ttft_ms, 50):6.0f} ms, "
            f"p95 {percentile(ttft_ms, 95):6.0f} ms"
        )
    return lines


def _within(promise: str, took_s: float | None, limit_s: float) -> Check:
    if took_s is None:
        return Check(promise, held=False, figure=f"not within {limit_s:.0f} s")
    return Check(promise, took_s <= limit_s, f"after {took_s:.1f} s (limit {limit_s:.0f} s)")


def _kinds(requests: Iterable[Request]) -> str:
    kinds = [f"{r.outcome} {r.status or ''} on {r.router} at {r.start_s:.1f}..{r.end_s:.1f} s" for r in requests]
    return "".join(f"\n      {kind}" for kind in kinds[:10])
