"""Events per CPU second of scorers: at offered rates, and working off a backlog; with one worker and with several."""

import contextlib

from benchmarks.pipeline import machine
from benchmarks.pipeline.flow import Offer, drain, offer, traffic_backlog
from benchmarks.pipeline.stack import PARTITIONS, Case, Kafka, Worker, case, wait_for

PRODUCERS = 8
RATES = (2_000, 10_000, 20_000)
BATCH_EVENTS = (10, 25, 40)  # 40 is what 20,000 events/s come to at the 125 records/s and partition that are advised
WORKERS = (1, 2, 4)


def sustained(
    where: Kafka, rounds: int, rates: tuple[int, ...] = RATES, seconds: float = 4.0
) -> dict[str, dict[str, float]]:
    """One worker at offered rates, 8 producers with the adaptive linger, 64 instances."""
    rows: dict[str, list[dict[str, float]]] = {}
    with case(where) as owner, owner.worker() as worker:
        worker.wait_ready()
        for number in range(rounds):
            for rate in rates:
                wanted = Offer(
                    producers=PRODUCERS,
                    rate=rate,
                    warmup_s=seconds,
                    measure_s=seconds,
                    settle_s=0.5,
                    track_every=100,
                    seed=number,
                )
                flow = offer(owner, [worker], wanted)
                rows.setdefault(f"{rate}/s offered", []).append(
                    {
                        "events_per_cpu_s": flow.events / max(flow.cpu_s, 0.01),
                        "events_per_s": flow.events / flow.seconds,
                        "events_per_record": flow.events / max(1.0, flow.records),
                        "cores": flow.cpu_s / flow.seconds,
                        "broker_cores": flow.broker_cpu_s / flow.seconds,
                        "snapshots_per_s": flow.snapshots / flow.seconds,
                        "snapshot_records_per_s": flow.snapshot_records / flow.seconds,
                        "snapshot_kb_per_s": flow.snapshot_bytes / flow.seconds / 1000,
                        "others_cores": flow.others_cores,
                    }
                )
    return {name: machine.middle(found) for name, found in rows.items()}


def drained(
    where: Kafka, rounds: int, events: int = 100_000, sizes: tuple[int, ...] = BATCH_EVENTS
) -> dict[str, dict[str, float]]:
    """One worker and a backlog written at once, by events per batch."""
    rows: dict[str, list[dict[str, float]]] = {}
    with case(where) as owner, owner.worker() as worker:
        worker.wait_ready()
        for number in range(rounds):
            for size in sizes:
                records = traffic_backlog(events, size, seed=100 * number + size)
                rows.setdefault(f"{size} events/record", []).append(drain(owner, [worker], records, events))
    return {name: machine.middle(found) for name, found in rows.items()}


def scaled(
    where: Kafka, rounds: int, events: int = 150_000, counts: tuple[int, ...] = WORKERS
) -> dict[str, dict[str, float]]:
    """Several workers of one group and a backlog of 25 events per record; all share this machine's cores."""
    rows: dict[str, list[dict[str, float]]] = {}
    for count in counts:
        with case(where) as owner, contextlib.ExitStack() as stack:
            workers = _start(owner, stack, count)
            for number in range(rounds):
                records = traffic_backlog(events, 25, seed=number)
                rows.setdefault(f"{count} workers", []).append(drain(owner, workers, records, events))
    return {name: machine.middle(found) for name, found in rows.items()}


def _start(owner: Case, stack: contextlib.ExitStack, count: int) -> list[Worker]:
    workers = [stack.enter_context(owner.worker()) for _ in range(count)]
    for worker in workers:
        worker.wait_ready()
    wait_for(
        lambda: (
            sum(worker.metrics().get("partitions", 0) for worker in workers) == PARTITIONS
            and min(worker.metrics().get("partitions", 0) for worker in workers) > 0
        ),
        "the partitions are spread",
    )
    return workers
