"""The snapshot reader against a real Kafka: where it begins, what it survives."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from evenload.broker import Broker
from evenload.bus.snapshots import SnapshotReader
from evenload.bus.topics import ensure_topics, specs, topic_names
from evenload.schemas import WIRE_VERSION, SnapshotBatch, encode
from tests.kafka_fixtures import TestTopics

NOWHERE = "127.0.0.1:1"  # nothing listens on port 1


def record(as_of: int, partition: int = 0) -> bytes:
    return encode(
        SnapshotBatch(
            v=WIRE_VERSION, partition=partition, as_of=as_of, now_ms=0, linger_ms=20, sequences={}, snapshots=[]
        )
    )


async def publish(bootstrap: str, topic: str, values: list[tuple[int, int | None, bytes]]) -> None:
    """Write (partition, timestamp in ms, value) records."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        for partition, at_ms, value in values:
            await producer.send_and_wait(topic, value, partition=partition, timestamp_ms=at_ms)
    finally:
        await producer.stop()


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (the condition is what is waited for)
            await asyncio.sleep(0.01)


class Seen:
    """What a reader handed on: (partition, offset, as_of)."""

    def __init__(self) -> None:
        self.all: list[tuple[int, int, int]] = []

    def __call__(self, partition: int, offset: int, batch: SnapshotBatch) -> None:
        self.all.append((partition, offset, batch.as_of))


@pytest.mark.kafka
async def test_it_begins_five_seconds_before_the_last_record_of_each_partition(topics: TestTopics) -> None:
    base_ms = 1_700_000_000_000
    values: list[tuple[int, int | None, bytes]] = [(0, base_ms + 1_000 * n, record(n)) for n in range(20)]
    values += [(2, base_ms + 900_000 + 2_000 * n, record(n, 2)) for n in range(10)]
    await publish(topics.bootstrap, topics.names.snapshots, values)
    seen = Seen()
    async with SnapshotReader(topics.bootstrap, topics.prefix, 4, seen) as reader:
        await until(lambda: all(reader.caught_up))
        await publish(topics.bootstrap, topics.names.snapshots, [(1, None, record(0, 1)), (0, None, record(20))])
        await until(lambda: len(seen.all) >= 11)
        assert sorted(seen.all) == (
            [(0, n, n) for n in range(14, 21)] + [(1, 0, 0)] + [(2, n, n) for n in range(7, 10)]
        )
        assert (reader.records, reader.undecodable, reader.failures, reader.sessions) == (11, 0, 0, 1)
        assert reader.alive
        assert reader.connected
        age_ms = reader.last_record_age_ms
        assert age_ms is not None
        assert age_ms < 5_000
    assert not reader.alive


@pytest.mark.kafka
async def test_records_that_cannot_be_read_and_callbacks_that_fail_are_counted_and_passed(topics: TestTopics) -> None:
    seen = Seen()

    def fail_at_one(partition: int, offset: int, batch: SnapshotBatch) -> None:
        if batch.as_of == 1:
            raise RuntimeError("callback")
        seen(partition, offset, batch)

    async with SnapshotReader(topics.bootstrap, topics.prefix, 4, fail_at_one) as reader:
        await until(lambda: all(reader.caught_up))
        values: list[tuple[int, int | None, bytes]] = [(0, None, record(0)), (0, None, b"\xc1 not ours")]
        values += [(0, None, record(1)), (0, None, record(2))]
        await publish(topics.bootstrap, topics.names.snapshots, values)
        await until(lambda: len(seen.all) == 2)
        assert seen.all == [(0, 0, 0), (0, 3, 2)]
        assert (reader.undecodable, reader.callback_errors, reader.alive) == (1, 1, True)


@pytest.mark.kafka
async def test_topics_that_are_made_late_are_waited_for_without_spinning(bootstrap: str, tmp_path: Path) -> None:
    prefix, seen = f"late-{tmp_path.name}", Seen()
    async with SnapshotReader(bootstrap, prefix, 4, seen) as reader:
        await until(lambda: reader.failures >= 2)
        used_s, begun_s = time.process_time(), time.monotonic()
        await asyncio.sleep(1.0)  # a span over which to measure
        assert time.process_time() - used_s < 0.5 * (time.monotonic() - begun_s)
        assert reader.alive
        await ensure_topics(bootstrap, specs(prefix))
        await until(lambda: all(reader.caught_up))
        await publish(bootstrap, topic_names(prefix).snapshots, [(3, None, record(7, 3))])
        await until(lambda: seen.all == [(3, 0, 7)])


@pytest.mark.kafka
async def test_after_a_broker_was_killed_and_came_back_each_record_is_handed_on_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    seen, topic = Seen(), topic_names("t").snapshots
    with Broker(tmp_path / "kafka") as broker:
        await ensure_topics(broker.bootstrap, specs("t"))
        async with SnapshotReader(broker.bootstrap, "t", 4, seen) as reader:
            await publish(broker.bootstrap, topic, [(0, None, record(0)), (1, None, record(1, 1))])
            await until(lambda: len(seen.all) == 2)
            broker.kill()
            caplog.clear()
            await asyncio.sleep(3)  # an outage takes time
            assert len(caplog.records) <= 4, [entry.getMessage() for entry in caplog.records]
            assert reader.alive
            await asyncio.to_thread(broker.start)
            await publish(broker.bootstrap, topic, [(0, None, record(2)), (1, None, record(3, 1))])
            await until(lambda: len(seen.all) == 4, 60)
            assert sorted(seen.all) == [(0, 0, 0), (0, 1, 2), (1, 0, 1), (1, 1, 3)]


async def test_without_kafka_it_stays_alive_and_says_that_it_knows_nothing() -> None:
    async with SnapshotReader(NOWHERE, "t", 4, Seen()) as reader:
        await until(lambda: reader.failures >= 2)
        assert reader.alive
        assert not reader.connected
        assert reader.last_record_age_ms is None
        assert reader.caught_up == [False] * 4
