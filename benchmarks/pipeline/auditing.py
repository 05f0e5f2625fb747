"""How long `evenload audit verify` takes: `python auditing.py JSON` is the child process that verifies.

The log lies in Kafka: telemetry of 64 instances at 2,000 events/s of log time, 10 events per record, and all snapshots
that a scorer publishes for it, made by the scorer's own core (`PartitionScorer`) in virtual time; so the telemetry
topic takes the timestamps that it is given (CreateTime). There are no decisions in it.
"""

import asyncio
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from aiokafka import AIOKafkaProducer

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.pipeline import machine, traffic
from benchmarks.pipeline.stack import PARTITIONS, Case, Kafka, case
from evenload.audit.main import Scope, verify
from evenload.schemas import encode
from evenload.scorer.core import Options, PartitionScorer
from evenload.settings import Settings
from evenload.settings.scoring import UNKNOWN

EVENTS = 1_000_000
EVENTS_PER_RECORD = 10
EVENTS_PER_S = 2_000
INSTANCES = 64
FLUSH_MS = 25  # the scorer's default
IN_FLIGHT_MAX = 500


def measure(where: Kafka, events: int = EVENTS) -> dict[str, dict[str, float]]:
    """Make a log of so many events, verify it in a process of its own, and return seconds and memory.

    Raises:
        RuntimeError: something was different, which would be a fault of the log made here.
    """
    with case(where, timestamps="CreateTime") as owner:
        asyncio.run(_make(owner, events))
        machine.wait_until_quiet()
        options = {"bootstrap": where.bootstrap, "prefix": owner.prefix}
        output = subprocess.run(
            [sys.executable, __file__, json.dumps(options)], check=True, stdout=subprocess.PIPE, timeout=180.0
        ).stdout
        row: dict[str, float] = json.loads(output)
        if row["events"] != events or row["exit_code"] != 0:
            raise RuntimeError(f"the audit of the log made here did not verify: {row}")
        return {f"{events} events": row}


async def _make(owner: Case, events: int) -> None:
    """Write telemetry and, at the moments when a scorer would, snapshots."""
    topic = owner.names.telemetry
    scorers = [PartitionScorer(p, Options(topic=topic), lambda _: UNKNOWN) for p in range(PARTITIONS)]
    start_ms = int(time.time() * 1000) - events * 1000 // EVENTS_PER_S
    flushed_ms = [start_ms] * PARTITIONS
    async with _Writer(owner.kafka.bootstrap) as writer:
        for number, (place, batch) in enumerate(
            traffic.batches(traffic.instances(INSTANCES), PARTITIONS, events, EVENTS_PER_RECORD)
        ):
            at_ms, scorer = start_ms + number * EVENTS_PER_RECORD * 1000 // EVENTS_PER_S, scorers[place]
            while flushed_ms[place] + FLUSH_MS <= at_ms:
                flushed_ms[place] += FLUSH_MS
                for record in scorer.snapshots(flushed_ms[place]):
                    await writer.send(owner.names.snapshots, place, encode(record), flushed_ms[place])
            data = encode(batch)
            scorer.on_record(scorer.position + 1, at_ms, data, at_ms)
            await writer.send(topic, place, data, at_ms)


class _Writer:
    """A producer with a bound of records under way."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            linger_ms=10,
            max_batch_size=500_000,
            compression_type="lz4",
            enable_idempotence=True,
        )
        self._futures: list[asyncio.Future[Any]] = []

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.gather(*self._futures)
        finally:
            await self._producer.stop()

    async def send(self, topic: str, partition: int, data: bytes, at_ms: int) -> None:
        """Append a record."""
        self._futures.append(await self._producer.send(topic, data, partition=partition, timestamp_ms=at_ms))
        if len(self._futures) >= IN_FLIGHT_MAX:
            await asyncio.gather(*self._futures)
            self._futures.clear()


def _verify(options: dict[str, str]) -> dict[str, float]:
    settings = Settings.model_validate(
        {
            "kafka": {
                "bootstrap": options["bootstrap"],
                "topic_prefix": options["prefix"],
                "partitions": PARTITIONS,
            }
        }
    )
    others, start_s = machine.Others(), time.monotonic()
    report = verify(settings, Scope(), lambda *_: None)
    return {
        "seconds": time.monotonic() - start_s,
        "cpu_s": time.process_time(),
        "events": report.telemetry_events,
        "snapshots": report.counts["snapshot", "verified"],
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "exit_code": report.exit_code,
        "others_cores": others.cores(),
    }


if __name__ == "__main__":
    print(json.dumps(_verify(json.loads(sys.argv[1]))))
