"""Did the story hold? Pure: client results, marks and samples in, verdicts with their figures out."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from evenload.demo.load import Result, percentile
from evenload.demo.load_client import Outcome
from evenload.demo.observe import Sample, attempts
from evenload.demo.story import SATURATED_ENGINE, SATURATION_KEYS, SLOW_ENGINE, Mark

WINDOW_S: Final = 5.0  # shares are those of the requests that arrive in a sliding window of this length
GRID_S: Final = 0.5  # between two windows
REACTION_S: Final = 2.0  # from the fault to the first window that counts
SICK_SHARE_MAX: Final = 0.05
BACK_SHARE_MIN: Final = 0.12
BACK_WITHIN_S: Final = 30.0
KILL_SLACK_S: Final = 0.5  # between the kill and the client's notice of it


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and what became of it."""

    key: str
    promise: str
    held: bool
    figure: str


@dataclass(frozen=True, slots=True)
class Run:
    """What one load run left behind.

    Attributes:
        results: What clients saw, in any order.
        marks: When the steps were.
        samples: What the routers said, in order of time.
        engines: Names, in order.
        routers: Base URLs, in order; the last one is killed.
        skipped: Arrivals that the generator did not send.
    """

    results: Sequence[Result]
    marks: Sequence[Mark]
    samples: Sequence[Sample]
    engines: Sequence[str]
    routers: Sequence[str]
    skipped: int = 0

    def mark(self, key: str) -> Mark:
        """When a step was.

        Raises:
            KeyError: It was not played.
        """
        for mark in self.marks:
            if mark.key == key:
                return mark
        raise KeyError(f"step {key!r} was not played")

    def between(self, start_s: float, end_s: float) -> list[Result]:
        """Requests that arrived in `[start_s, end_s)`."""
        return [result for result in self.results if start_s <= result.at_s < end_s]

    def saturation(self) -> Mark:
        """From the first saturated step to the end of the last."""
        marks = [self.mark(key) for key in SATURATION_KEYS]
        return Mark("saturated", marks[0].start_s, marks[-1].end_s)


def share(results: Iterable[Result], engine: str) -> float | None:
    """Share of an engine among the answered requests; None when there are none."""
    answered = [result.instance for result in results if result.instance is not None]
    return answered.count(engine) / len(answered) if answered else None


def window_shares(run: Run, engine: str, start_s: float, end_s: float) -> list[tuple[float, float]]:
    """(end of window, share) for all windows inside `[start_s, end_s]`; windows without requests are left out."""
    count = math.floor((end_s - start_s - WINDOW_S) / GRID_S + 1e-9) + 1
    ends = [start_s + WINDOW_S + index * GRID_S for index in range(max(0, count))]
    found = [(end, share(run.between(end - WINDOW_S, end), engine)) for end in ends]
    return [(end, value) for end, value in found if value is not None]


def on_killed_router(run: Run, result: Result) -> bool:
    """Whether a request failed because it was on the killed router when that died."""
    kills = [mark.start_s for mark in run.marks if mark.key == "router_down"]
    if not kills or result.outcome is not Outcome.CUT or result.router != run.routers[-1]:
        return False
    began, ended = result.at_s, result.at_s + result.duration_ms / 1000
    return began <= kills[0] + KILL_SLACK_S and ended >= kills[0] - KILL_SLACK_S


def without_excused(run: Run, results: Iterable[Result]) -> list[Result]:
    """Results without the streams that were on the killed router: nobody can save those."""
    return [result for result in results if not on_killed_router(run, result)]


def lost(run: Run) -> list[Result]:
    """Failed requests that nothing excuses."""
    return [result for result in without_excused(run, run.results) if not result.ok]


def judge(run: Run) -> list[Check]:
    """All checks of the whole story.

    Raises:
        KeyError: A step was not played.
    """
    return [
        _nothing_failed(run),
        _avoided(run),
        _back(run),
        _saturation_hidden(run),
        _router_killed(run),
        _served_without_broker(run),
        _caught_up(run),
    ]


def _nothing_failed(run: Run) -> Check:
    bad = lost(run)
    on_killed = sum(not r.ok for r in run.results) - len(bad)
    kinds = sorted({f"{r.outcome} {r.status or ''}".strip() for r in bad})
    figure = f"{len(bad)} of {len(run.results)} failed"
    figure += f" ({', '.join(kinds)})" if kinds else ""
    figure += f", besides {on_killed} streams that were on the killed router"
    if run.skipped:
        figure += f"; {run.skipped} were not sent: too many in flight"
    promise = "no client request fails but the streams on the killed router"
    return Check("no_failures", promise, bool(run.results) and not bad and not run.skipped, figure)


def _avoided(run: Run) -> Check:
    slow, engine = run.mark("slow"), run.engines[SLOW_ENGINE]
    start_s = slow.start_s + REACTION_S
    shares = window_shares(run, engine, start_s, slow.end_s)
    worst = max((value for _, value in shares), default=1.0)
    mean = share(run.between(start_s, slow.end_s), engine)
    probes = attempts(run.samples, slow.start_s, slow.end_s).get((engine, "probe"), 0.0)
    return Check(
        "sick_share",
        f"share of the sick engine under {SICK_SHARE_MAX:.0%} from {REACTION_S:g} s after the fault",
        worst < SICK_SHARE_MAX,
        f"at most {worst:.1%} in any {WINDOW_S:g} s, {mean or 0.0:.1%} on the whole; {probes:.0f} probes among them",
    )


def share_back_s(run: Run) -> float | None:
    """Seconds from healing until the share of the last window is above the bound; None if that was too late."""
    healed, engine = run.mark("healed"), run.engines[SLOW_ENGINE]
    shares = window_shares(run, engine, healed.start_s - WINDOW_S, healed.start_s + BACK_WITHIN_S)
    return next((end - healed.start_s for end, value in shares if value > BACK_SHARE_MIN), None)


def _back(run: Run) -> Check:
    back_s, healed, engine = share_back_s(run), run.mark("healed"), run.engines[SLOW_ENGINE]
    last = share(run.between(healed.end_s - WINDOW_S, healed.end_s), engine) or 0.0
    fair = 1 / len(run.engines)
    after = "not" if back_s is None else f"after {back_s:.1f} s"
    return Check(
        "share_back",
        f"its share above {BACK_SHARE_MIN:.0%} (fair: {fair:.1%}) within {BACK_WITHIN_S:g} s of healing",
        back_s is not None,
        f"{after}, in a window of {WINDOW_S:g} s; {last:.1%} in the last {WINDOW_S:g} s of the step",
    )


def _saturation_hidden(run: Run) -> Check:
    window, engine = run.saturation(), run.engines[SATURATED_ENGINE]
    seen = without_excused(run, run.between(window.start_s, window.end_s))
    failed = sum(not result.ok for result in seen)
    refused = sum(
        count for (name, _), count in attempts(run.samples, window.start_s, window.end_s).items() if name == engine
    )
    return Check(
        "saturation_hidden",
        "clients do not notice the saturated engine",
        bool(seen) and not failed,
        f"{failed} of {len(seen)} failed; {refused:.0f} attempts were refused and tried elsewhere",
    )


def _router_killed(run: Run) -> Check:
    down, back = run.mark("router_down"), run.mark("router_back")
    served = without_excused(run, run.between(down.start_s, down.end_s))
    ok = sum(result.ok for result in served)
    survivor = run.routers[0]
    by_other = sum(result.ok and result.router == survivor for result in served)
    later = [r.at_s for r in run.results if r.ok and r.router == run.routers[-1] and r.at_s > back.start_s]
    again = f"{min(later) - back.start_s:.1f} s after" if later else "never after"
    return Check(
        "router_killed",
        "the other router serves on, and the killed one serves again when it is back",
        by_other > 0 and bool(later),
        f"{ok} of {len(served)} served while it was down; it served again {again} its start",
    )


def _served_without_broker(run: Run) -> Check:
    down = run.mark("broker_down")
    served = run.between(down.start_s, down.end_s)
    ok = sum(result.ok for result in served)
    median = percentile((r.ttft_ms for r in served if r.ttft_ms is not None), 50)
    return Check(
        "broker_down",
        "the routers serve on without Kafka",
        bool(served) and ok == len(served),
        f"{ok} of {len(served)} served, p50 TTFT {median:.0f} ms",
    )


def _caught_up(run: Run) -> Check:
    down, back = run.mark("broker_down"), run.mark("broker_back")
    during = [s for s in run.samples if down.start_s <= s.at_s <= back.end_s]
    waited = max((sum(r.telemetry.get("events_buffered", 0.0) for r in s.routers if r) for s in during), default=0.0)
    last = run.samples[-1].routers if run.samples else ()
    # A router that does not answer has lost its telemetry as far as anybody can tell.
    lost_events = sum(r.telemetry.get("events_lost", 0.0) if r else 1.0 for r in last)
    at_s = next((s.at_s for s in during if s.at_s > back.start_s and caught_up(s)), None)
    after = "not" if at_s is None else f"{at_s - back.start_s:.1f} s after it answered again"
    return Check(
        "caught_up",
        "telemetry catches up after Kafka's return: no event lost, snapshots fresh again",
        at_s is not None and bool(last) and lost_events == 0,
        f"{lost_events:.0f} events lost, up to {waited:.0f} waited; caught up {after}",
    )


def caught_up(sample: Sample) -> bool:
    """Whether every router's view is fresh and nothing older than a moment waits to be sent."""
    return bool(sample.routers) and all(
        r is not None and r.view == "fresh" and r.telemetry.get("oldest_unsent_ms", 0.0) < 2000 for r in sample.routers
    )
