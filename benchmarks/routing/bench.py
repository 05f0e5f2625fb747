"""What a choice costs, and what simulating costs: `python benchmarks/routing/bench.py [--json] [--simulate]`."""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from evenload.bench.grid import run_case
from evenload.bench.inputs import DEFAULT, jobs_of
from evenload.routing import POLICIES, FleetView, InstanceView, LeaseBook, Request, eligible
from evenload.schemas import InstanceState
from evenload.scoring import ScoringConfig
from evenload.sim.engine import Engine
from evenload.sim.scenario import Case
from evenload.sim.scenarios import SCENARIOS
from evenload.sim.sequence import SimRequest

CONFIG = ScoringConfig(evidence="censored")
NOW_MS = 1_000_000
SIZES = (4, 8, 64)


def candidates(count: int) -> list[InstanceView]:
    """Instances in different states, always the same."""
    rng = Random(1)
    return [
        InstanceView(
            instance=f"i{number:02d}",
            state=InstanceState(
                instance=f"i{number:02d}",
                tick=NOW_MS // 100,
                log_ms=NOW_MS,
                live_at_ms=NOW_MS - int(rng.random() * 1500),
                live_ttft_ms=100.0 + 200.0 * rng.random(),
                ewma_ttft_ms=100.0 + 200.0 * rng.random(),
                window_s=NOW_MS // 1000,
                waiting=int(rng.random() * 4),
                running=int(rng.random() * 60),
                kv_usage=rng.random() * 0.8,
                gauges_ms=NOW_MS - 100,
                ok_sum=200,
                damped=90.0,
                base_ms=30.0 + 20.0 * rng.random(),
                token_ms=0.03 + 0.02 * rng.random(),
                fit_trust=0.7 + 0.2 * rng.random(),
                fit_weight=400.0,
                slowness=1.0 + rng.random(),
                slow_at_ms=NOW_MS - int(rng.random() * 1500),
            ),
            config=CONFIG,
            score=60.0 + 40.0 * rng.random(),
            in_flight=int(rng.random() * 20),
            awaiting=int(rng.random() * 4),
            awaiting_tokens=int(rng.random() * 4000),
            in_flight_tokens=int(rng.random() * 20_000),
            others_in_flight=int(rng.random() * 60),
            others_awaiting=int(rng.random() * 6),
            others_awaiting_tokens=int(rng.random() * 9000),
            others_in_flight_tokens=int(rng.random() * 60_000),
            snapshot_ms=NOW_MS - 120,
        )
        for number in range(count)
    ]


def choice_us(policy: str, count: int, rounds: int) -> float:
    """Microseconds of a choice, the median of nine runs."""
    chosen, views, rng = POLICIES[policy](), candidates(count), Random(2)
    request = Request(prompt_tokens=1200)
    return _median_us(lambda: chosen.choose(views, request, NOW_MS, rng), rounds)


def view_us(count: int, rounds: int) -> float:
    """Microseconds to read `count` instances at a new tick and to exclude."""
    names = [f"i{number:02d}" for number in range(count)]
    view = FleetView(dict.fromkeys(names, CONFIG), dict.fromkeys(names, 0), 1, NOW_MS)
    book, request, ticks = LeaseBook(), Request(prompt_tokens=1200), iter(range(NOW_MS, 10**12, 10))

    def read() -> None:
        now_ms = next(ticks)
        eligible([view.read(name, book.counts(name), now_ms) for name in names], request, now_ms)

    return _median_us(read, rounds)


def _median_us(call: Callable[[], object], rounds: int) -> float:
    runs: list[float] = []
    for _ in range(9):
        start = time.process_time()
        for _ in range(rounds):
            call()
        runs.append((time.process_time() - start) / rounds * 1e6)
    return statistics.median(runs)


def simulation_s(traces: Path, duration_s: float = 600.0) -> float:
    """CPU seconds of S1 at 85 %, 8 engines, 4 routers."""
    case = Case(scenario=SCENARIOS["s1-u85"].shortened(duration_s), policy="predictive", seed=1)
    jobs_of(traces, case.scenario, case.seed)
    return run_case(case, traces).took_s


def engines_s(traces: Path, duration_s: float = 3600.0) -> float:
    """CPU seconds of 8 engines through conversation at 70 %, without routers: least work first."""
    scenario = SCENARIOS["s1-u70"].shortened(duration_s)
    jobs = jobs_of(traces, scenario, 1)
    engines = [Engine(spec.machine) for spec in scenario.fleet if spec.machine is not None]
    start = time.process_time()
    for job in jobs:
        engine = engines[job.number % len(engines)]
        engine.submit(SimRequest(str(job.number), job.prompt_tokens, job.output_tokens), job.at_ms)
    for engine in engines:
        while (due_ms := engine.next_event_ms()) is not None:
            engine.advance(due_ms)
    return time.process_time() - start


def measure(rounds: int, sizes: Sequence[int] = SIZES) -> dict[str, dict[str, float]]:
    """Return microseconds by policy and number of candidates, and of the view."""
    figures = {
        policy: {f"{count}_us": round(choice_us(policy, count, rounds), 2) for count in sizes} for policy in POLICIES
    }
    figures["(view and exclusion)"] = {f"{count}_us": round(view_us(count, rounds), 2) for count in sizes}
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--traces", type=Path, default=DEFAULT)
    options = parser.parse_args()
    gc.disable()
    figures = measure(options.rounds)
    if options.simulate:
        figures["(simulation)"] = {
            "s1_u85_600s_s": round(simulation_s(options.traces), 1),
            "8_engines_3600s_s": round(engines_s(options.traces), 1),
        }
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, row in figures.items():
        print(f"{name:<22} " + "  ".join(f"{key} {value:>8.2f}" for key, value in row.items()))


if __name__ == "__main__":
    main()
