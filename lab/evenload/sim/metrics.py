"""The figures of one run. Requests that failed, were refused, timed out or were cut count as an infinite TTFT.

- `ttft_p50_ms`, `ttft_p99_ms`, `ttft_p999_ms`: over measured requests; `ttft_focus_p99_ms`: over those in focus (short
  prompts in S5).
- `tpot_p50_ms`, `tpot_p99_ms`: (end-to-end - TTFT) / (output tokens - 1), over those that ended well.
- `goodput_rps`, `attainment`: requests that meet every SLO, per second and as a share; `effective_tps`: their output
  tokens per second.
- `unserved_share`: measured user requests that did not end well, and the same by reason.
- `imbalance`: mean over seconds of the largest over the mean number of requests held.
- `l0_*`: oracle L0, what each measured request would have met alone on the fastest instance.

Of the first fault of a scenario, `F` being the faulty instance:

- `fault_ttft_p99_ms`, `fault_unserved_share`: over requests that came while it was on.
- `harmed_share`: of those, whose TTFT is above twice what a healthy instance would have given at that moment.
- `t95_s`: time from which F's share of attempts, probes apart, stays at or below 5 % over sliding windows of 500 ms,
for
  5 s; the window's end counts.
- `fault_share`: F's share of attempts from 1 s after the fault until it heals, probes apart; `fault_probe_share`:
probes.
- `back90_s`: after healing, when F first has 90 % of its fair share over 5 s; `overshoot`: the most it gets, in fair
  shares.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile
from math import inf, isfinite, isnan, nan

from evenload.sim.jobs import HASH_TOKENS, Job
from evenload.sim.lookahead import unloaded_ttft_ms, usable_tokens
from evenload.sim.results import OK, STATUSES, Result
from evenload.sim.scenario import Fault, Scenario

SHORT_TOKENS = 4096
CURVE_POINTS = 200
Figures = dict[str, float]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of sorted values; NaN of none."""
    if not ordered:
        return nan
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def figures(result: Result) -> Figures:
    """Return the figures of a run by name."""
    scenario = result.case.scenario
    low_ms, high_ms = scenario.window_ms
    measured = [job for job in result.jobs if low_ms <= job.at_ms < high_ms]
    span_s = (high_ms - low_ms) / 1000.0
    ttfts = sorted(result.ttft_ms[job.number] for job in measured)
    found: Figures = {
        "requests": len(measured),
        "ttft_mean_ms": _mean([value for value in ttfts if isfinite(value)]),
        "ttft_p50_ms": quantile(ttfts, 0.5),
        "ttft_p90_ms": quantile(ttfts, 0.9),
        "ttft_p99_ms": quantile(ttfts, 0.99),
        "ttft_p999_ms": quantile(ttfts, 0.999),
    }
    focus = ttfts
    if scenario.focus == "short":
        focus = sorted(result.ttft_ms[job.number] for job in measured if job.prompt_tokens < SHORT_TOKENS)
    found["ttft_focus_p99_ms"] = quantile(focus, 0.99)
    found |= _service(result, [job.number for job in measured], span_s)
    found |= _fleet(result)
    if scenario.faults:
        found |= _fault(result, scenario.faults[0])
    return found


def _service(result: Result, numbers: Sequence[int], span_s: float) -> Figures:
    slo = result.case.scenario.slo
    tpots: list[float] = []
    good = tokens = 0
    for number in numbers:
        if result.status[number] != OK:
            continue
        output = result.jobs[number].output_tokens
        ttft_ms = result.ttft_ms[number]
        tpot_ms = (result.end_ms[number] - ttft_ms) / (output - 1) if output > 1 else 0.0
        if output > 1:
            tpots.append(tpot_ms)
        if ttft_ms <= slo.ttft_ms and tpot_ms <= slo.tpot_ms:
            good += 1
            tokens += output
    tpots.sort()
    ended: Figures = {
        f"{STATUSES[status]}_share": sum(result.status[number] == status for number in numbers) / max(1, len(numbers))
        for status in range(2, len(STATUSES))
    }
    unhappy = sum(result.status[number] != OK for number in numbers)
    return {
        "tpot_p50_ms": quantile(tpots, 0.5),
        "tpot_p99_ms": quantile(tpots, 0.99),
        "goodput_rps": good / span_s,
        "attainment": good / max(1, len(numbers)),
        "effective_tps": tokens / span_s,
        "unserved_share": unhappy / max(1, len(numbers)),
        **ended,
    }


def _fleet(result: Result) -> Figures:
    total = {
        name: sum(getattr(one, name) for one in result.totals)
        for name in ("preemptions", "recomputed_tokens", "rejections", "crashes", "prefix_queries", "prefix_hits")
    }
    queries, hits = total.pop("prefix_queries"), total.pop("prefix_hits")
    count = len(result.names)
    ratios: list[float] = []
    for at in range(0, len(result.held), count):
        held = result.held[at : at + count]
        if sum(held) >= count:
            ratios.append(max(held) * count / sum(held))
    return {
        **{name: float(value) for name, value in total.items()},
        "prefix_hit_share": hits / queries if queries else 0.0,
        "imbalance": _mean(ratios),
        "probe_share": result.probes / max(1, result.choices),
        "attempts_per_request": len(result.attempt_ms) / max(1, len(result.jobs)),
    }


def _fault(result: Result, fault: Fault) -> Figures:
    during = [job for job in result.jobs if fault.from_ms <= job.at_ms < fault.until_ms]
    ttfts = sorted(result.ttft_ms[job.number] for job in during)
    harmed = sum(
        result.ttft_ms[job.number] > 2.0 * result.healthy_ms[job.number]
        for job in during
        if not isnan(result.healthy_ms[job.number])
    )
    times, target, others, probes = _attempts(result, fault.instance)
    settled_ms = fault.from_ms + 1000.0
    dead, all_after = _share(times, target, settled_ms, fault.until_ms)
    return {
        "fault_requests": len(during),
        "fault_ttft_p99_ms": quantile(ttfts, 0.99),
        "fault_unserved_share": sum(result.status[job.number] != OK for job in during) / max(1, len(during)),
        "harmed_share": harmed / max(1, len(during)),
        "fault_share": dead / max(1, all_after),
        "fault_probe_share": sum(fault.from_ms <= at < fault.until_ms for at in probes)
        / max(1, bisect_left(others, fault.until_ms) - bisect_left(others, fault.from_ms)),
        "t95_s": _t95_s(times, target, fault),
        **_recovery(result.case.scenario, times, target, fault, len(result.names)),
    }


def _attempts(result: Result, index: int) -> tuple[list[float], list[float], list[float], list[float]]:
    """Times of attempts that are no probes: all, and those at the instance; of all attempts; of probes there."""
    times: list[float] = []
    target: list[float] = []
    probes: list[float] = []
    for at_ms, instance, probe in zip(result.attempt_ms, result.attempt_instance, result.attempt_probe, strict=True):
        if probe and instance == index:
            probes.append(at_ms)
            continue
        times.append(at_ms)
        if instance == index:
            target.append(at_ms)
    return times, target, list(result.attempt_ms), probes


def _share(times: Sequence[float], target: Sequence[float], low_ms: float, high_ms: float) -> tuple[int, int]:
    mine = bisect_left(target, high_ms) - bisect_left(target, low_ms)
    return mine, bisect_left(times, high_ms) - bisect_left(times, low_ms)


def _t95_s(times: Sequence[float], target: Sequence[float], fault: Fault) -> float:
    """The first end of a 500 ms window from which all windows' shares stay at or below 5 % for 5 s."""
    window_ms, hold_ms, step_ms = 500.0, 5000.0, 50.0
    good_since: float | None = None
    at_ms = fault.from_ms + step_ms
    while at_ms <= fault.until_ms:
        mine, every = _share(times, target, max(fault.from_ms, at_ms - window_ms), at_ms)
        if mine > 0.05 * every:
            good_since = None
        elif good_since is None:
            good_since = at_ms
        if good_since is not None and at_ms - good_since >= hold_ms:
            return (good_since - fault.from_ms) / 1000.0
        at_ms += step_ms
    return inf


def _recovery(scenario: Scenario, times: Sequence[float], target: Sequence[float], fault: Fault, count: int) -> Figures:
    """After healing: 5 s windows, stepping 500 ms; fair is one in the number of instances."""
    end_ms = scenario.duration_s * 1000.0
    window_ms, back_s, most = 5000.0, inf, 0.0
    at_ms = fault.until_ms + window_ms
    while at_ms <= end_ms:
        mine, every = _share(times, target, at_ms - window_ms, at_ms)
        fair = mine * count / every if every else 0.0
        most = max(most, fair)
        if fair >= 0.9 and back_s == inf:
            back_s = (at_ms - fault.until_ms) / 1000.0
        at_ms += 500.0
    return {"back90_s": back_s, "overshoot": most}


def curves(result: Result) -> dict[str, list[float]]:
    """Return what plots need: 200 quantiles of TTFT, and the share of each instance per second."""
    low_ms, high_ms = result.case.scenario.window_ms
    ttfts = sorted(result.ttft_ms[job.number] for job in result.jobs if low_ms <= job.at_ms < high_ms)
    found = {"ttft_ms": [quantile(ttfts, (at + 1) / CURVE_POINTS) for at in range(CURVE_POINTS)]}
    if result.case.scenario.faults:
        index = result.case.scenario.faults[0].instance
        seconds = int(result.case.scenario.duration_s)
        mine, every = [0] * seconds, [0] * seconds
        for at_ms, instance in zip(result.attempt_ms, result.attempt_instance, strict=True):
            second = int(at_ms / 1000.0)
            if second < seconds:
                every[second] += 1
                mine[second] += instance == index
        found["faulty_share"] = [a / b if b else 0.0 for a, b in zip(mine, every, strict=True)]
    return found


def unloaded_figures(result: Result) -> Figures:
    """Oracle L0: what each measured request would have met alone on the fastest instance; nobody beats it."""
    low_ms, high_ms = result.case.scenario.window_ms
    floors = floors_ms(result.case.scenario, result.jobs)
    ttfts = sorted(floors[job.number] for job in result.jobs if low_ms <= job.at_ms < high_ms)
    return {f"l0_{name}_ms": quantile(ttfts, share) for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))}


def floors_ms(scenario: Scenario, jobs: Sequence[Job]) -> list[float]:
    """Return the least TTFT of each job: alone, on the fastest instance, with the longest prefix anyone had before."""
    machines = {spec.machine for spec in scenario.fleet if spec.machine is not None}
    providers = {spec.provider for spec in scenario.fleet if spec.machine is None}
    cached = any(spec.prefix_cache for spec in scenario.fleet)
    seen: set[int] = set()
    found: list[float] = []
    for job in jobs:
        known = sum(1 for _ in takewhile(seen.__contains__, job.hashes)) * HASH_TOKENS if cached else 0
        seen.update(job.hashes)
        tokens = usable_tokens(known, job.prompt_tokens)
        alone = [unloaded_ttft_ms(machine, job.prompt_tokens, tokens) for machine in machines]
        found.append(min([*alone, *(provider.healthy_ttft_ms(job.noise) for provider in providers)]))
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else nan
