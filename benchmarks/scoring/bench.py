"""How fast scoring is, per core: `python benchmarks/scoring/bench.py [--json] [--events N] [--rounds N]`.

CPU time of this process (so a busy machine matters less), median of the rounds, one instance, a mix of events like
that of a router and a collector: 35 % first tokens, 35 % outcomes, 10 % overdue, 15 % loads, 5 % gauges, 2,000 events
per second of log time. `naive` changes one state in place (naive.py) and runs in the same rounds; the ratios to it are
what to compare between machines. The bar: 150,000 events/s of `apply` with the published config, decode excluded.
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.scoring.naive import NaiveScore
from evenload.schemas import (
    Batch,
    EngineGauges,
    Event,
    FirstToken,
    InstanceState,
    Outcome,
    Overdue,
    RouterLoad,
    decode_batch,
    encode,
)
from evenload.scoring import DEFAULT, ScoringConfig, apply, fold, fresh, snapshot

EVENTS_PER_BATCH = 50
START_MS = 1_700_000_000_000
CENSORED = ScoringConfig(evidence="censored")


def draw_events(count: int) -> list[Event]:
    """Draw the mix of events, always the same."""
    rng = random.Random(1)
    return [_draw_event(rng) for _ in range(count)]


def _draw_event(rng: random.Random) -> Event:
    kind = rng.random()
    if kind < 0.35:
        return FirstToken(instance="a", ttft_ms=rng.lognormvariate(5.3, 0.4), prompt_tokens=100)
    if kind < 0.70:
        return Outcome(instance="a", kind="ok" if rng.random() < 0.98 else "timeout", status=200, duration_ms=3.0)
    if kind < 0.80:
        return Overdue(instance="a", age_ms=250.0)
    if kind < 0.95:
        return RouterLoad(instance="a", in_flight=3, awaiting=1, in_flight_tokens=5, awaiting_tokens=3)
    return EngineGauges(instance="a", running=3, waiting=1, kv_usage=0.3)


def time_apply(events: list[Event], config: ScoringConfig) -> float:
    """Return seconds for applying the events one by one."""
    state = fresh("a", START_MS, config)
    start = time.process_time()
    for index, event in enumerate(events):
        state = apply(state, event, START_MS + index // 2, config)
    return time.process_time() - start


def time_naive(events: list[Event]) -> float:
    """Return seconds for the naive version."""
    naive = NaiveScore()
    start = time.process_time()
    for index, event in enumerate(events):
        naive.apply(event, START_MS + index // 2)
    return time.process_time() - start


def batches_of(events: list[Event]) -> list[Batch]:
    """Return the events as the batches of four producers."""
    return [
        Batch(v=1, producer="r", incarnation=number % 4, seq=number, events=events[first : first + EVENTS_PER_BATCH])
        for number, first in enumerate(range(0, len(events), EVENTS_PER_BATCH))
    ]


def time_fold(batches: list[Batch]) -> float:
    """Return seconds for folding decoded batches."""
    states: dict[str, InstanceState] = {}
    start = time.process_time()
    for offset, batch in enumerate(batches):
        states.update(fold(states, batch, offset, START_MS + 25 * offset, lambda _instance: DEFAULT))
    return time.process_time() - start


def time_fold_with_decode(records: list[bytes]) -> float:
    """Return seconds for decoding and folding batches."""
    states: dict[str, InstanceState] = {}
    start = time.process_time()
    for offset, data in enumerate(records):
        batch = decode_batch(data)
        states.update(fold(states, batch, offset, START_MS + 25 * offset, lambda _instance: DEFAULT))
    return time.process_time() - start


def time_snapshots(count: int) -> float:
    """Return seconds for snapshots 60 ms after the last event, of a state with eight replicas' loads."""
    states: dict[str, InstanceState] = {}
    for replica in range(8):
        load = RouterLoad(instance="a", in_flight=replica + 1)
        batch = Batch(v=1, producer="r", incarnation=replica, seq=0, events=[load, *draw_events(20)])
        states.update(fold(states, batch, replica, START_MS, lambda _instance: DEFAULT))
    start = time.process_time()
    for _ in range(count):
        snapshot(states["a"], START_MS + 60)
    return time.process_time() - start


def measure(event_count: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return per case its rate per second of CPU (median, lowest and highest round) and ratio to `naive`."""
    events = draw_events(event_count)
    batches = batches_of(events)
    records = [encode(batch) for batch in batches]
    snapshot_count = event_count // 5
    cases: dict[str, tuple[int, Callable[[], float]]] = {
        "naive": (event_count, lambda: time_naive(events)),
        "apply": (event_count, lambda: time_apply(events, DEFAULT)),
        "apply_censored": (event_count, lambda: time_apply(events, CENSORED)),
        "fold": (event_count, lambda: time_fold(batches)),
        "fold_with_decode": (event_count, lambda: time_fold_with_decode(records)),
        "snapshot": (snapshot_count, lambda: time_snapshots(snapshot_count)),
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):  # interleaved, so that a noisy minute meets all cases alike
        for name, (count, run) in cases.items():
            gc.collect()
            rates[name].append(count / run())
    naive = statistics.median(rates["naive"])
    return {
        name: {
            "per_s": statistics.median(values),
            "per_s_min": min(values),
            "per_s_max": max(values),
            "to_naive": statistics.median(values) / naive,
        }
        for name, values in rates.items()
    }


def main() -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description="Speed of scoring per core")
    parser.add_argument("--events", type=int, default=100_000, help="events per round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(options.events, options.rounds)
    if options.json:
        print(json.dumps({"python": sys.version.split()[0], "events": options.events, "cases": figures}, indent=1))
        return
    print(f"Python {sys.version.split()[0]}, {options.events} events, median of {options.rounds} rounds, CPU time")
    print(f"{'case':<18}{'per s':>12}{'lowest':>12}{'highest':>12}{'to naive':>10}")
    for name, row in figures.items():
        rates = "".join(f"{row[column]:>12,.0f}" for column in ("per_s", "per_s_min", "per_s_max"))
        print(f"{name:<18}{rates}{row['to_naive']:>10.2f}")


if __name__ == "__main__":
    main()
