"""The connection for writing, and what shares it: frozen brokers, best-effort records, reading back."""

import asyncio
import os
import signal
import uuid
from pathlib import Path

import pytest

from evenload.broker import Broker
from evenload.bus.link import ProducerLink
from evenload.bus.log_reader import TopicMissing, read_log
from evenload.bus.records import RECORD_BYTES_MAX, RecordSender
from evenload.bus.topics import BusUnavailable, ensure_topics, specs, topic_names
from tests.kafka_fixtures import TestTopics

NOWHERE = "127.0.0.1:1"  # nothing listens on port 1


@pytest.mark.kafka
async def test_a_broker_that_freezes_costs_repeats_but_neither_order_nor_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topic_names("t").telemetry
    with Broker(tmp_path / "kafka") as broker:
        await ensure_topics(broker.bootstrap, specs("t"))
        link = ProducerLink(broker.bootstrap, "r", 4, attempt_s=1.0)

        async def send(number: int) -> None:
            receipt = await link.produce(topic, number % 4, lambda: [(None, b"%d" % number)])
            assert receipt.written == 1

        for number in range(8):
            await send(number)
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            frozen = [asyncio.create_task(send(number)) for number in range(8, 12)]
            async with asyncio.timeout(30):
                while link.failures < 4:  # noqa: ASYNC110 (failures are what is waited for)
                    await asyncio.sleep(0.05)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        async with asyncio.timeout(60):
            await asyncio.gather(*frozen)
            for number in range(12, 20):
                await send(number)
        await link.close()
        assert not [entry.getMessage() for entry in caplog.records if entry.name == "asyncio"]
        values: dict[int, list[int]] = {0: [], 1: [], 2: [], 3: []}
        async for record in read_log(broker.bootstrap, topic):
            values[record.partition].append(int(record.value or b""))
    firsts = {partition: list(dict.fromkeys(got)) for partition, got in values.items()}
    assert firsts == {partition: list(range(partition, 20, 4)) for partition in range(4)}


@pytest.mark.kafka
async def test_records_of_one_key_arrive_in_order_in_its_partition(topics: TestTopics) -> None:
    link = ProducerLink(topics.bootstrap, "r", 4)
    async with RecordSender(link, topics.names.decisions, partitions=4) as sender:
        for number in range(1_500):
            assert sender.send(b"key-%d" % (number % 5), b"%d" % number)
        assert not sender.send(b"key", b"x" * (RECORD_BYTES_MAX + 1))
        assert await sender.flush(20)
        assert (sender.sent, sender.buffered, sender.dropped, sender.too_large) == (1_500, 0, 0, 1)
        assert sender.alive
    assert not sender.send(b"key", b"late")
    await link.close()
    values: dict[bytes, list[int]] = {b"key-%d" % n: [] for n in range(5)}
    homes: set[tuple[bytes, int]] = set()
    async for record in read_log(topics.bootstrap, topics.names.decisions):
        assert record.key is not None
        homes.add((record.key, record.partition))
        values[record.key].append(int(record.value or b""))
    assert len(homes) == 5
    assert values == {b"key-%d" % n: list(range(n, 1_500, 5)) for n in range(5)}


async def test_without_kafka_records_beyond_either_bound_are_dropped_and_counted() -> None:
    link = ProducerLink(NOWHERE, "r", 4)
    async with RecordSender(link, "t", partitions=4, buffer_records_max=10) as sender:
        assert [sender.send(b"k", b"v") for _ in range(12)] == [True] * 10 + [False] * 2
        assert (sender.buffered, sender.dropped) == (10, 2)
        assert not await sender.close(0.1)
        assert (sender.buffered, sender.dropped) == (0, 12)
    small = RecordSender(link, "t", partitions=4, buffer_bytes_max=100)
    assert [small.send(b"k", b"v" * 59) for _ in range(2)] == [True, False]
    await link.close()


@pytest.mark.kafka
async def test_a_log_is_read_between_offsets_and_between_times(topics: TestTopics) -> None:
    topic = topics.names.telemetry  # timestamps are the broker's, and so rise
    link = ProducerLink(topics.bootstrap, "r", 4)
    for number in range(10):
        await link.produce(topic, number % 2, lambda number=number: [(None, b"%d" % number)])  # type: ignore[misc]
        await asyncio.sleep(0.005)  # so that times differ
    await link.close()
    every = [record async for record in read_log(topics.bootstrap, topic)]
    assert sorted(int(record.value or b"") for record in every) == list(range(10))
    assert [record.offset for record in every if record.partition == 0] == list(range(5))
    some = [r async for r in read_log(topics.bootstrap, topic, first={0: 3, 1: 0}, until={0: 99, 1: 2})]
    assert sorted((record.partition, record.offset) for record in some) == [(0, 3), (0, 4), (1, 0), (1, 1)]
    times = {int(record.value or b""): record.timestamp_ms for record in every}
    timed = [r async for r in read_log(topics.bootstrap, topic, first_ms=times[3], until_ms=times[7])]
    assert sorted(int(record.value or b"") for record in timed) == [3, 4, 5, 6]


@pytest.mark.kafka
async def test_reading_a_topic_that_is_not_there_names_it(bootstrap: str) -> None:
    name = f"none-{uuid.uuid4().hex}"
    with pytest.raises(TopicMissing, match=name):
        [record async for record in read_log(bootstrap, name)]


async def test_reading_without_kafka_names_the_address() -> None:
    with pytest.raises(BusUnavailable, match=NOWHERE):
        [record async for record in read_log(NOWHERE, "t")]
