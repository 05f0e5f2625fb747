"""Producer processes and scorer workers together: offered rates, and backlogs to be worked off."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from benchmarks.pipeline import machine, traffic
from benchmarks.pipeline.stack import PARTITIONS, Case, Worker, wait_for

PROCESSES_MAX = 2  # of producers: as many as a small machine has cores
IN_FLIGHT_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What producers offer.

    Attributes:
        rate: events per second of all producers together.
        track_every: which share of the events is followed to the snapshots.
        probe_every: which share of the events are probes; 0 for none.
    """

    producers: int
    rate: float
    instances: int = 64
    warmup_s: float = 5.0
    measure_s: float = 4.0
    settle_s: float = 2.5
    track_every: int = 1
    probe_every: int = 0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Flow:
    """What came of an offer, in the measured part of it.

    Attributes:
        events: applied by the workers; `records` and `snapshot_*` likewise.
        cpu_s: of the workers.
        producers: the figures of the producer processes (producer.py).
        snapshot_bytes: in the log, compressed.
    """

    seconds: float
    events: float
    records: float
    snapshots: float
    snapshot_records: float
    snapshot_bytes: float
    cpu_s: float
    broker_cpu_s: float
    others_cores: float
    producers: list[dict[str, Any]]

    def delays_ms(self, kind: str) -> list[float]:
        """All delays of a kind."""
        return [value for producer in self.producers for value in producer[kind]]


def offer(owner: Case, workers: Sequence[Worker], wanted: Offer) -> Flow:
    """Let producers offer events to running workers, and measure after the warm-up.

    Raises:
        RuntimeError: a producer process failed.
    """
    count = min(PROCESSES_MAX, wanted.producers)
    machine.wait_until_quiet()
    children = [_child(owner, wanted, number, count) for number in range(count)]
    try:
        for child in children:
            if child.stdout is None or child.stdout.readline() != b"ready\n":
                raise RuntimeError("a producer process did not start")
        for child in children:
            assert child.stdin is not None
            child.stdin.write(b"g")
            child.stdin.flush()
        time.sleep(wanted.warmup_s)
        others, before, start_s = machine.Others(), _look(owner, workers), time.monotonic()
        time.sleep(wanted.measure_s)
        after, seconds, others_cores = _look(owner, workers), time.monotonic() - start_s, others.cores()
        figures = [_result(owner, number, child) for number, child in enumerate(children)]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    moved = {name: after[name] - before[name] for name in after}
    return Flow(
        seconds=seconds,
        events=moved["events_total"],
        records=moved["records_total"],
        snapshots=moved["snapshots_total"],
        snapshot_records=moved["snapshot_records_total"],
        snapshot_bytes=moved["snapshot_bytes"],
        cpu_s=moved["cpu_s"],
        broker_cpu_s=moved["broker_cpu_s"],
        others_cores=others_cores,
        producers=figures,
    )


def _result(owner: Case, number: int, child: "subprocess.Popen[bytes]") -> dict[str, Any]:
    if child.wait(60.0) != 0:
        raise RuntimeError("a producer process failed")
    figures: dict[str, Any] = json.loads(_result_path(owner, number).read_text())
    return figures


def _result_path(owner: Case, number: int) -> Path:
    return owner.kafka.folder / f"producer-{number}.json"


def _look(owner: Case, workers: Sequence[Worker]) -> dict[str, float]:
    found = {
        "cpu_s": sum(worker.cpu_s() for worker in workers),
        "broker_cpu_s": machine.cpu_s(owner.kafka.pid) if owner.kafka.pid is not None else 0.0,
        "snapshot_bytes": float(owner.kafka.stored_bytes(owner.names.snapshots)),
    }
    for worker in workers:
        metrics = worker.metrics()
        for name in ("events_total", "records_total", "snapshots_total", "snapshot_records_total"):
            found[name] = found.get(name, 0.0) + metrics.get(name, 0.0)
    return found


def _child(owner: Case, wanted: Offer, number: int, count: int) -> "subprocess.Popen[bytes]":
    share = wanted.producers // count + (number < wanted.producers % count)
    options = {
        "bootstrap": owner.kafka.bootstrap,
        "prefix": owner.prefix,
        "name": f"router-{number}",
        "partitions": PARTITIONS,
        "emitters": share,
        "instances": wanted.instances,
        "rate": wanted.rate * share / wanted.producers,
        "warmup_s": wanted.warmup_s,
        "measure_s": wanted.measure_s,
        "settle_s": wanted.settle_s,
        "track_every": wanted.track_every,
        "probe_every": wanted.probe_every,
        "seed": wanted.seed + number,
        "result": str(_result_path(owner, number)),
    }
    command = [sys.executable, str(Path(__file__).with_name("producer.py")), json.dumps(options)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def write(owner: Case, records: Sequence[tuple[int, bytes]]) -> None:
    """Append telemetry records to their partitions, in order, as fast as Kafka takes them."""
    asyncio.run(_write(owner.kafka.bootstrap, owner.names.telemetry, records))


async def _write(bootstrap: str, topic: str, records: Sequence[tuple[int, bytes]]) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=5, max_batch_size=500_000, compression_type="lz4"
    ) as producer:
        futures = []
        for partition, data in records:
            futures.append(await producer.send(topic, data, partition=partition))
            if len(futures) >= IN_FLIGHT_MAX:
                await asyncio.gather(*futures)
                futures.clear()
        await asyncio.gather(*futures)


def drain(
    owner: Case, workers: Sequence[Worker], records: Sequence[tuple[int, bytes]], events: int
) -> dict[str, float]:
    """Write a backlog for running workers and wait until they have applied it all."""
    machine.wait_until_quiet()
    others = machine.Others()
    before, cpu_s, start_s = _applied(workers), sum(worker.cpu_s() for worker in workers), time.monotonic()
    write(owner, records)
    wait_for(lambda: _applied(workers) - before >= events, "backlog worked off", 120.0)
    seconds = time.monotonic() - start_s
    used_s = sum(worker.cpu_s() for worker in workers) - cpu_s
    return {"events_per_cpu_s": events / used_s, "events_per_s": events / seconds, "others_cores": others.cores()}


def _applied(workers: Sequence[Worker]) -> int:
    return sum(worker.events() for worker in workers)


def traffic_backlog(events: int, events_per_batch: int, seed: int, instances: int = 64) -> list[tuple[int, bytes]]:
    """A backlog for `drain`; another seed gives other producers."""
    return traffic.backlog(traffic.instances(instances), PARTITIONS, events, events_per_batch, seed=seed)
