"""The story of the providers, as data and as figures: one of six goes from 200 to 3500 ms, and heals. Pure.

All figures are of what clients saw: who answered, and when the first content came after the scheduled arrival.

- `shifted`: how much of the slow provider's share before went elsewhere, among requests that arrive from one second
  after the step until it heals.
- `met`: requests that went there all the same, from the step until it heals.
- `evaded_ms`: from the step to the last request that still went there before it first got nothing for a second, in
  which its share would have been some 17 requests. Re-tests come later and are part of `shifted`.
- `back_s`: from healing to the end of the first window of two seconds in which it has 90 % of its share before.
- `overshoot`: its largest share of any two seconds from then on, in shares before.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

from evenload.demo.checks import Check, Run, share
from evenload.demo.load import Result, percentile
from evenload.demo.story import SLOW_ENGINE, SLOW_TTFT_MS, Action, Step, Until
from evenload.demo.workload import Arrival, Trace

PROVIDERS: Final = 6
RATE_RPS: Final = 100.0
TTFT_MS: Final = 200.0  # median, log-normal with the sigma of `ProviderModel`
PROMPT_TOKENS: Final = (20, 400)
OUTPUT_TOKENS: Final = 2  # their time is not the subject, and every token costs the machine that runs it all
COLD_S: Final = 3.0  # of the warm-up, not counted
GAP_S: Final = 1.0
WINDOW_S: Final = 2.0

KEPT_UP: Final = 1.5
SHIFTED_MIN: Final = 0.95
EVADED_MS_MAX: Final = 500.0  # after the healthy p99
BACK_S_MAX: Final = 30.0
BACK_SHARE: Final = 0.9
OVERSHOOT_MAX: Final = 2.0
AFTERWARDS_MAX: Final = 1.5  # p99 once it is back, over the healthy p99


@dataclass(frozen=True, slots=True)
class Pace:
    """Lengths in seconds."""

    warm_up_s: float = 15.0
    slow_s: float = 30.0
    healed_s_max: float = 40.0
    settle_s: float = 15.0


FULL: Final = Pace()
QUICK: Final = Pace(warm_up_s=8.0, slow_s=8.0, settle_s=6.0)


def script(pace: Pace) -> tuple[Step, ...]:
    """What happens."""
    slow = {"slow": {"ttft_ms": SLOW_TTFT_MS}}
    title = f"provider-{SLOW_ENGINE} slows: first token after {SLOW_TTFT_MS:.0f} ms instead of about {TTFT_MS:.0f}"
    return (
        Step("warm_up", f"six providers, all healthy, {RATE_RPS:.0f} requests a second", pace.warm_up_s),
        Step("slow", title, pace.slow_s, Action.FAULT, SLOW_ENGINE, slow),
        Step(
            "healed",
            f"provider-{SLOW_ENGINE} has healed: how soon does its share come back?",
            pace.healed_s_max,
            Action.HEAL,
            SLOW_ENGINE,
            until=Until.SHARE_BACK,
            seconds_min=2.0,
        ),
        Step("back", f"provider-{SLOW_ENGINE} has its share again", pace.settle_s),
    )


def workload(seconds: float, seed: int) -> Trace:
    """Poisson arrivals of small requests."""
    rng, at_s, found = Random(f"providers:{seed}"), 0.0, list[Arrival]()
    while at_s < seconds:
        at_s += rng.expovariate(RATE_RPS)
        found.append(Arrival(at_s, rng.randint(*PROMPT_TOKENS), OUTPUT_TOKENS))
    return Trace(tuple(found), at_s, (f"Poisson, {RATE_RPS:.0f} requests/s, seed {seed}",))


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured; times in milliseconds or seconds as named, shares 0..1."""

    requests: int
    lost: int
    share_before: float
    healthy_p50_ms: float
    healthy_p99_ms: float
    slow_p50_ms: float
    slow_p99_ms: float
    slow_p99_from_1s_ms: float
    met: int
    shifted: float
    evaded_ms: float
    back_s: float
    overshoot: float
    afterwards_p99_ms: float

    def document(self) -> dict[str, Any]:
        """As plain data; what never happened is null."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}


def figures(run: Run) -> Figures:
    """Measure a run.

    Raises:
        KeyError: A step was not played.
    """
    name = run.engines[SLOW_ENGINE]
    warm, slow, healed = (run.mark(key) for key in ("warm_up", "slow", "healed"))
    end_s = run.mark("back").end_s
    before = run.between(warm.start_s + COLD_S, slow.start_s)
    during = run.between(slow.start_s, healed.start_s)
    late = run.between(slow.start_s + 1.0, healed.start_s)
    usual = share(before, name) or math.nan
    back_s = _back_s(run, name, usual)
    afterwards = run.between(healed.start_s + back_s, end_s) if math.isfinite(back_s) else []
    return Figures(
        requests=len(run.results),
        lost=sum(not result.ok for result in run.results),
        share_before=usual,
        healthy_p50_ms=_ttft_ms(before, 50),
        healthy_p99_ms=_ttft_ms(before, 99),
        slow_p50_ms=_ttft_ms(during, 50),
        slow_p99_ms=_ttft_ms(during, 99),
        slow_p99_from_1s_ms=_ttft_ms(late, 99),
        met=sum(result.instance == name for result in during),
        shifted=1.0 - (share(late, name) or 0.0) / usual,
        evaded_ms=1000.0 * _evaded_s(during, name, slow.start_s, healed.start_s),
        back_s=back_s,
        overshoot=_overshoot(run, name, healed.start_s + back_s, end_s) / usual,
        afterwards_p99_ms=_ttft_ms(afterwards, 99),
    )


def judge(found: Figures) -> list[Check]:
    """Hold the figures against what is promised."""
    limit_ms = found.healthy_p99_ms + EVADED_MS_MAX
    return [
        Check(
            "kept_up",
            f"this machine keeps up: while all is well the median is at most {KEPT_UP * TTFT_MS:.0f} ms",
            found.healthy_p50_ms <= KEPT_UP * TTFT_MS,
            f"{found.healthy_p50_ms:.0f} ms; more means that it is too busy for the figures to say anything",
        ),
        Check(
            "nothing_lost",
            "no request fails",
            found.lost == 0,
            f"{found.lost} of {found.requests} failed",
        ),
        Check(
            "shifted",
            f"from 1 s on, over {SHIFTED_MIN:.0%} of the slow provider's share goes elsewhere",
            found.shifted > SHIFTED_MIN,
            f"{found.shifted:.1%} of its {found.share_before:.1%}",
        ),
        Check(
            "evaded",
            f"it is left alone at most {EVADED_MS_MAX:.0f} ms after the healthy p99 of TTFT",
            found.evaded_ms <= limit_ms,
            f"{found.evaded_ms:.0f} ms after the step; the healthy p99 is {found.healthy_p99_ms:.0f} ms",
        ),
        Check(
            "back",
            f"healed, it has {BACK_SHARE:.0%} of its share again within {BACK_S_MAX:.0f} s",
            found.back_s <= BACK_S_MAX,
            f"after {found.back_s:.1f} s",
        ),
        Check(
            "graceful",
            f"and never over {OVERSHOOT_MAX:g} times its share, the p99 at most {AFTERWARDS_MAX:g} of the healthy one",
            found.overshoot <= OVERSHOOT_MAX and found.afterwards_p99_ms <= AFTERWARDS_MAX * found.healthy_p99_ms,
            f"at most {found.overshoot:.2f} times; p99 {found.afterwards_p99_ms:.0f} ms",
        ),
    ]


def _ttft_ms(results: Sequence[Result], q: float) -> float:
    return percentile([math.inf if result.ttft_ms is None else result.ttft_ms for result in results], q)


def _evaded_s(results: Sequence[Result], name: str, start_s: float, end_s: float) -> float:
    """The last arrival before the first gap, after the start; infinite when there is no gap."""
    last_s = start_s
    for at_s in sorted(result.at_s for result in results if result.instance == name):
        if at_s - last_s > GAP_S:
            break
        last_s = at_s
    return last_s - start_s if end_s - last_s > GAP_S else math.inf


def _back_s(run: Run, name: str, usual: float) -> float:
    start_s = run.mark("healed").start_s
    for end_s, value in _windows(run, name, start_s, run.mark("back").end_s):
        if value >= BACK_SHARE * usual:
            return end_s - start_s
    return math.inf


def _overshoot(run: Run, name: str, start_s: float, end_s: float) -> float:
    start_s = min(start_s, end_s)
    return max((value for _, value in _windows(run, name, start_s - WINDOW_S, end_s)), default=math.nan)


def _windows(run: Run, name: str, start_s: float, end_s: float) -> list[tuple[float, float]]:
    """(end, share) of windows every quarter of a second."""
    count = max(0, math.floor((end_s - start_s - WINDOW_S) * 4 + 1e-9) + 1)
    ends = [start_s + WINDOW_S + index / 4 for index in range(count)]
    found = [(end, share(run.between(end - WINDOW_S, end), name)) for end in ends]
    return [(end, value) for end, value in found if value is not None]
