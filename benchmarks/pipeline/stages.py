"""Where the time from `Emitter.add` to the view goes: `python stages.py FILE` is a scorer that keeps times.

- `sent`: from `Emitter.add` to Kafka's acknowledgement, linger included;
- `applied`: from the record's timestamp in the log to its fold in the scorer;
- `flushed`: from there until snapshots of its partition were made, and `making`, the making itself;
- `published`: from there to Kafka's acknowledgement;
- `covered`: all of it, as in the section freshness, the router's fetch included. Acknowledgements are no part of it.
"""

import json
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.pipeline import machine
from benchmarks.pipeline.flow import Offer, offer
from benchmarks.pipeline.freshness import RATE
from benchmarks.pipeline.stack import Kafka, case
from evenload.scorer.app import ScorerApp
from evenload.scorer.core import PartitionScorer
from evenload.scorer.main import run
from evenload.settings import load_settings


def measure(
    where: Kafka, rounds: int, producers: tuple[int, ...] = (2, 8), seconds: float = 4.0, warmup_s: float = 10.0
) -> dict[str, dict[str, float]]:
    """Milliseconds per stage, 2,000 events/s and 64 instances, by producers."""
    rows: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        for count in producers:
            output = where.folder / "stages.json"
            with case(where) as owner, owner.worker(program=(__file__, str(output))) as worker:
                worker.wait_ready()
                flow = offer(
                    owner,
                    [worker],
                    Offer(producers=count, rate=RATE, warmup_s=warmup_s, measure_s=seconds, seed=number),
                )
                worker.end()
            stages = _stages(json.loads(output.read_text()))
            stages |= {"sent": flow.delays_ms("acked_ms"), "covered": flow.delays_ms("covered_ms")}
            row = {"others_cores": flow.others_cores}
            for name in ("sent", "applied", "flushed", "making", "published", "covered"):
                row[f"{name}_p50"] = machine.quantile(stages[name], 0.5)
                row[f"{name}_p99"] = machine.quantile(stages[name], 0.99)
            rows.setdefault(f"{count} producers", []).append(row)
    return {name: machine.middle(found) for name, found in rows.items()}


def _stages(times: dict[str, list[list[float]]]) -> dict[str, list[float]]:
    """Delays per stage, of the second half of the run."""
    applied = times["applied"][len(times["applied"]) // 2 :]
    flushes: dict[float, list[float]] = defaultdict(list)
    for partition, at_ms, _ in times["made"]:
        flushes[partition].append(at_ms)
    flushed = []
    for partition, _, at_ms in applied:
        following = bisect_left(flushes[partition], at_ms)
        if following < len(flushes[partition]):
            flushed.append(flushes[partition][following] - at_ms)
    return {
        "applied": [at_ms - logged_ms for _, logged_ms, at_ms in applied],
        "flushed": flushed,
        "making": [took_ms for _, _, took_ms in times["made"]],
        "published": [took_ms for (took_ms,) in times["published"]],
    }


def _keep_times(times: dict[str, list[list[float]]]) -> None:
    """Make the scorer's parts note when they do what."""
    on_record, snapshots, send = PartitionScorer.on_record, PartitionScorer.snapshots, ScorerApp._send_snapshots

    def noted_record(self: PartitionScorer, offset: int, timestamp_ms: int, data: bytes, mono_ms: float) -> Any:
        times["applied"].append([self.partition, timestamp_ms, time.time() * 1000])
        return on_record(self, offset, timestamp_ms, data, mono_ms)

    def noted_snapshots(self: PartitionScorer, mono_ms: float) -> Any:
        at_ms, start_s = time.time() * 1000, time.perf_counter()
        found = snapshots(self, mono_ms)
        if found:
            times["made"].append([self.partition, at_ms, (time.perf_counter() - start_s) * 1000])
        return found

    async def noted_send(self: ScorerApp, batch: Any) -> bool:
        start_s = time.perf_counter()
        done = await send(self, batch)
        times["published"].append([(time.perf_counter() - start_s) * 1000])
        return done

    PartitionScorer.on_record = noted_record  # type: ignore[method-assign]
    PartitionScorer.snapshots = noted_snapshots  # type: ignore[method-assign]
    ScorerApp._send_snapshots = noted_send  # type: ignore[method-assign]


def _main(output: Path) -> None:
    times: dict[str, list[list[float]]] = {"applied": [], "made": [], "published": []}
    _keep_times(times)
    leave = ScorerApp.leave

    def noted_leave(self: ScorerApp) -> Any:
        output.write_text(json.dumps(times))
        return leave(self)

    ScorerApp.leave = noted_leave  # type: ignore[method-assign]
    run(load_settings())


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
