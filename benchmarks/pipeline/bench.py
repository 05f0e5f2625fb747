"""The pipeline on a real Kafka with real scorers: `python benchmarks/pipeline/bench.py [SECTION ...] [--json]`.

Sections: throughput, backlog, freshness, flush, stages, workers, fleet, emitter, audit; without one, all of them.
README.md says what each measures. Figures are medians of quiet rounds; `others_cores` is what other processes used.
"""

import argparse
import json
import pstats
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.pipeline import auditing, emitter_cpu, fleet, freshness, machine, stages, throughput
from benchmarks.pipeline.flow import Offer, offer
from benchmarks.pipeline.stack import SCORER, Kafka, case, kafka

FLUSH_MS = (25, 50, 100)

Rows = dict[str, dict[str, float]]

SECTIONS: dict[str, tuple[str, Callable[[Kafka, int], Rows]]] = {
    "throughput": ("one scorer, offered rates, 8 producers, 64 instances, adaptive linger", throughput.sustained),
    "backlog": ("one scorer works off a backlog", throughput.drained),
    "freshness": ("ms from Emitter.add to the view, 2,000 events/s, 64 instances", freshness.measure),
    "flush": (
        "the same by the scorer's flush_ms, 2 producers",
        lambda where, rounds: freshness.measure(where, rounds, producers=(2,), flush_ms=FLUSH_MS),
    ),
    "stages": ("ms per stage of the way, 2,000 events/s, 64 instances", stages.measure),
    "workers": ("several scorers, backlog of 25 events per record", throughput.scaled),
    "fleet": ("by number of instances", fleet.measure),
    "emitter": ("CPU us per event in the producer, 64 instances, 4 partitions", emitter_cpu.measure),
    "audit": ("evenload audit verify, from Kafka", lambda where, _rounds: auditing.measure(where)),
}


def run(names: list[str], rounds: int, bootstrap: str | None = None) -> dict[str, dict[str, object]]:
    """Measure sections on one Kafka; returns per section its rows, what they are and the load average after it."""
    with kafka(bootstrap) as where:
        found: dict[str, dict[str, object]] = {}
        for name in names:
            what, measure = SECTIONS[name]
            print(f"{name}: {what} ...", file=sys.stderr, flush=True)
            found[name] = {"what": what, "rows": measure(where, rounds), "load": machine.load()}
        return found


def profile(bootstrap: str | None, rate: float) -> None:
    """Print where a scorer's main thread spends its time at an offered rate of 8 producers (cProfile slows it)."""
    with kafka(bootstrap) as where, case(where) as owner:
        output = where.folder / "scorer.prof"
        with owner.worker(program=("-m", "cProfile", "-o", str(output), *SCORER)) as worker:
            worker.wait_ready()
            offer(owner, [worker], Offer(producers=8, rate=rate, warmup_s=2.0, measure_s=8.0, track_every=100))
            worker.end()
        pstats.Stats(str(output)).sort_stats("tottime").print_stats(30)


def print_table(what: str, rows: Rows, load: object) -> None:
    """Print one section: a line per figure, a column per case; median and, in brackets, the extremes of the rounds."""
    print(f"\n{what} (load average {load})")
    width = max(len(name) for name in rows) + 2
    width = max(width, 26)
    print(" " * 24 + "".join(f"{name:>{width}}" for name in rows))
    figures = [name for name in next(iter(rows.values())) if not name.endswith(("_min", "_max"))]
    for figure in figures:
        print(f"{figure:<24}" + "".join(f"{_cell(row, figure):>{width}}" for row in rows.values()))


def _cell(row: dict[str, float], figure: str) -> str:
    if figure not in row:
        return "-"
    if f"{figure}_min" not in row:
        return _number(row[figure])
    return f"{_number(row[figure])} ({_number(row[f'{figure}_min'])}..{_number(row[f'{figure}_max'])})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def main() -> None:
    """Measure and print tables, or JSON."""
    parser = argparse.ArgumentParser(description="The pipeline on a real Kafka")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bootstrap", help="a Kafka that runs already; else the embedded one is started")
    parser.add_argument("--profile", type=float, metavar="RATE", help="profile a scorer at so many events/s instead")
    options = parser.parse_args()
    unknown = set(options.sections) - SECTIONS.keys()
    if unknown:
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    if options.profile is not None:
        profile(options.bootstrap, options.profile)
        return
    found = run(options.sections or list(SECTIONS), options.rounds, options.bootstrap)
    if options.json:
        print(json.dumps({"machine": machine.describe(), "rounds": options.rounds, "sections": found}, indent=1))
        return
    print(" ".join(f"{key}={value}" for key, value in machine.describe().items()))
    for section in found.values():
        print_table(str(section["what"]), section["rows"], section["load"])  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
