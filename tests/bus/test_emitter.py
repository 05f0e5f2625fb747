"""The emitter against a real Kafka: order, offsets, outages, bounds."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from evenload.broker import Broker
from evenload.bus.emitter import Emitter, Placed
from evenload.bus.log_reader import LogRecord, read_log
from evenload.bus.topics import ensure_topics, partition_for, specs, topic_names
from evenload.schemas import Batch, Event, FirstToken, Outcome, decode_batch
from tests.kafka_fixtures import TestTopics

NOWHERE = "127.0.0.1:1"  # nothing listens on port 1


def token(instance: str, ttft_ms: float) -> FirstToken:
    return FirstToken(instance=instance, ttft_ms=ttft_ms)


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def read_all(bootstrap: str, topic: str) -> list[tuple[LogRecord, Batch]]:
    return [(record, decode_batch(record.value or b"")) async for record in read_log(bootstrap, topic)]


def events_in_order(read: list[tuple[LogRecord, Batch]], incarnation: int) -> dict[int, list[Event]]:
    """Events per partition as a reader that drops repeated batches sees them; fails at a gap."""
    following: dict[int, int] = defaultdict(int)
    events: dict[int, list[Event]] = defaultdict(list)
    for record, batch in read:
        assert batch.incarnation == incarnation
        if batch.seq < following[record.partition]:
            continue
        assert batch.seq == following[record.partition], "a gap or a swap"
        following[record.partition] += 1
        events[record.partition] += batch.events
    return events


@pytest.mark.kafka
async def test_every_event_arrives_in_order_in_the_partition_of_its_instance(topics: TestTopics) -> None:
    sent: dict[int, list[float]] = defaultdict(list)
    async with Emitter(topics.bootstrap, topics.prefix, "router-1", partitions=4) as emitter:
        for number in range(2_000):
            instance = f"gpu-{number % 7}"
            placed = emitter.add(token(instance, number), 1_000)
            assert placed is not None
            assert placed.partition == partition_for(instance.encode(), 4)
            sent[placed.partition].append(number)
            if number % 100 == 0:
                await asyncio.sleep(0.01)
        assert await emitter.flush(20)
        assert (emitter.buffered, emitter.sent_events, emitter.lost_events) == (0, 2_000, 0)
    read = await read_all(topics.bootstrap, topics.names.telemetry)
    events = events_in_order(read, emitter.incarnation)
    assert {partition: [event.ttft_ms for event in got] for partition, got in events.items()} == sent  # type: ignore[union-attr]
    assert all(batch.view_ms == 1_000 and batch.producer == "router-1" for _, batch in read)


@pytest.mark.kafka
async def test_the_callback_gives_each_batch_the_offset_and_time_that_it_has_in_the_log(topics: TestTopics) -> None:
    acked: list[tuple[int, int, int, int]] = []
    places: dict[Placed, float] = {}
    async with Emitter(
        topics.bootstrap, topics.prefix, "r", partitions=4, on_ack=lambda *ack: acked.append(ack)
    ) as emitter:
        for number in range(3_000):
            placed = emitter.add(token(f"gpu-{number % 5}", number), 0)
            assert placed is not None
            places[placed] = number
            if number % 150 == 0:
                await asyncio.sleep(0.005)
        assert await emitter.flush(20)
    read = await read_all(topics.bootstrap, topics.names.telemetry)
    log = {(record.partition, batch.seq): (record.offset, record.timestamp_ms) for record, batch in read}
    assert {(partition, seq): (offset, at) for partition, seq, offset, at in acked} == log
    found = {
        Placed(record.partition, batch.seq, index, batch.view_ms + event.at): event.ttft_ms  # type: ignore[union-attr]
        for record, batch in read
        for index, event in enumerate(batch.events)
    }
    assert found == places


@pytest.mark.kafka
async def test_a_callback_that_fails_harms_nothing(topics: TestTopics) -> None:
    def fail(*_: int) -> None:
        raise RuntimeError("callback")

    async with Emitter(topics.bootstrap, topics.prefix, "r", partitions=4, on_ack=fail) as emitter:
        for number in range(100):
            emitter.add(token("gpu-1", number), 0)
            await asyncio.sleep(0.001)
        assert await emitter.flush(20)
        assert emitter.sent_events == 100
        assert emitter.alive


@pytest.mark.kafka
async def test_after_a_broker_was_killed_and_came_back_nothing_is_missing_and_nothing_is_out_of_order(
    tmp_path: Path,
) -> None:
    with Broker(tmp_path / "kafka") as broker:
        await ensure_topics(broker.bootstrap, specs("t"))
        async with Emitter(broker.bootstrap, "t", "r", partitions=4) as emitter:
            sent: dict[int, list[float]] = defaultdict(list)
            running = True

            async def produce() -> None:
                number = 0
                while running:
                    placed = emitter.add(token(f"gpu-{number % 7}", number), 0)
                    assert placed is not None
                    sent[placed.partition].append(number)
                    number += 1
                    await asyncio.sleep(0.001)

            producing = asyncio.create_task(produce())
            await until(lambda: emitter.sent_events > 200)
            broker.kill()
            sent_before = emitter.sent_events
            await asyncio.sleep(3)  # an outage takes time
            assert emitter.sent_events - sent_before < 500
            assert emitter.oldest_age_ms > 2_000
            await asyncio.to_thread(broker.start)
            await until(lambda: emitter.sent_events > sent_before + 2_000)
            running = False
            await producing
            assert await emitter.flush(30)
            assert emitter.lost_events == 0
            read = await read_all(broker.bootstrap, topic_names("t").telemetry)
    events = events_in_order(read, emitter.incarnation)
    assert {partition: [event.ttft_ms for event in got] for partition, got in events.items()} == sent  # type: ignore[union-attr]


@pytest.mark.kafka
async def test_a_batch_says_how_old_its_events_are(topics: TestTopics) -> None:
    now_s = [100.0]
    emitter = Emitter(topics.bootstrap, topics.prefix, "r", partitions=4, clock=lambda: now_s[0])
    emitter.add(token("gpu-1", 0), 0)
    now_s[0] += 12.0
    emitter.add(token("gpu-1", 1), 12_000)
    now_s[0] += 3.0
    async with emitter:
        assert await emitter.flush(20)
    ((_, batch),) = await read_all(topics.bootstrap, topics.names.telemetry)
    assert batch.age_ms == 15_000.0
    assert [event.at for event in batch.events] == [0, 12_000]


@pytest.mark.kafka
async def test_topics_that_are_made_late_are_waited_for(bootstrap: str, tmp_path: Path) -> None:
    prefix = f"late-{tmp_path.name}"
    async with Emitter(bootstrap, prefix, "r", partitions=4) as emitter:
        emitter.add(token("gpu-1", 1), 0)
        assert not await emitter.flush(1)
        assert emitter.link.failures
        await ensure_topics(bootstrap, specs(prefix))
        assert await emitter.flush(20)


async def test_without_kafka_from_the_start_adding_neither_raises_nor_blocks() -> None:
    async with Emitter(NOWHERE, "t", "r", partitions=4) as emitter:
        slowest_s = 0.0
        for number in range(1_000):
            begun = time.perf_counter()
            assert emitter.add(token("gpu-1", number), 0) is not None
            slowest_s = max(slowest_s, time.perf_counter() - begun)
        assert slowest_s < 0.1
        await until(lambda: emitter.link.failures > 1)
        assert emitter.alive
        assert emitter.buffered == 1_000
        assert not await emitter.close(0.1)
        assert (emitter.buffered, emitter.lost_events) == (0, 1_000)
        assert emitter.add(token("gpu-1", 0), 0) is None
        assert emitter.lost_events == 1_001


async def test_beyond_the_bound_the_newest_events_are_lost_and_counted() -> None:
    emitter = Emitter(NOWHERE, "t", "r", partitions=4, buffer_events_max=1_000)
    placed = [emitter.add(token("gpu-1", number), 0) for number in range(1_200)]
    assert all(place is not None for place in placed[:1_000])
    assert placed[1_000:] == [None] * 200
    assert (emitter.buffered, emitter.lost_events) == (1_000, 200)
    assert placed[999] == Placed(partition_for(b"gpu-1", 4), 1, 499, 0)


async def test_an_event_that_no_reader_would_accept_is_refused_and_spoils_nothing() -> None:
    emitter = Emitter(NOWHERE, "t", "r", partitions=4)
    assert emitter.add(token("gpu-1", 1.0), 0) is not None
    for bad in (token("gpu-1", -1.0), token("gpu-1", float("nan")), token("", 1.0), token("\ud800", 1.0)):
        assert emitter.add(bad, 0) is None
    assert emitter.add(Outcome(instance="gpu-1", kind="no such kind"), 0) is None  # type: ignore[arg-type]
    assert emitter.add(None, 0) is None  # type: ignore[arg-type]
    assert emitter.add(token("gpu-1", 2.0), 0) == Placed(partition_for(b"gpu-1", 4), 0, 1, 0)
    assert (emitter.buffered, emitter.invalid_events, emitter.lost_events) == (2, 6, 0)
