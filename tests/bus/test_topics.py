import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.partitioner import DefaultPartitioner

from evenload.broker import ports
from evenload.bus import topics as bus_topics
from evenload.bus.log_reader import read_log
from evenload.bus.topics import (
    BusUnavailable,
    TopicMismatch,
    TopicRefused,
    describe_topics,
    ensure_topics,
    partition_for,
    specs,
)
from tests.kafka_fixtures import TestTopics


def test_a_key_goes_where_kafkas_default_partitioner_sends_it() -> None:
    rng = random.Random(7)
    choose = DefaultPartitioner()
    for length in range(200):
        key = rng.randbytes(length)
        for count in (1, 4, 12, 97):
            assert partition_for(key, count) == choose(key, list(range(count)), [])


def test_the_names_are_the_default_prefix_with_five_endings() -> None:
    assert [spec.name for spec in specs()] == [
        bus_topics.TELEMETRY,
        bus_topics.SNAPSHOTS,
        bus_topics.STATE,
        bus_topics.DECISIONS,
        bus_topics.DEAD_LETTERS,
    ]
    assert bus_topics.DEAD_LETTERS == "evenload.dead-letters"


def test_all_topics_have_the_same_partition_count() -> None:
    assert {spec.partitions for spec in specs(partitions=12)} == {12}


def test_three_copies_ask_for_two_in_sync() -> None:
    assert all(spec.config["min.insync.replicas"] == "2" for spec in specs(replication=3))


@pytest.mark.parametrize(("partitions", "replication"), [(0, 1), (4, 0)])
def test_counts_below_one_are_refused(partitions: int, replication: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        specs(partitions=partitions, replication=replication)


@pytest.mark.kafka
async def test_made_topics_have_the_partitions_and_settings_of_their_specs(topics: TestTopics) -> None:
    found = await describe_topics(topics.bootstrap, topics.specs)
    for spec, topic in zip(topics.specs, found, strict=True):
        assert (topic.name, topic.exists, topic.partitions, topic.records) == (spec.name, True, spec.partitions, 0)
        assert {name: topic.config[name] for name in spec.config} == dict(spec.config)
        assert topic.problems == ()


@pytest.mark.kafka
async def test_making_them_again_changes_nothing(topics: TestTopics) -> None:
    before = await describe_topics(topics.bootstrap, topics.specs)
    await ensure_topics(topics.bootstrap, topics.specs)
    assert await describe_topics(topics.bootstrap, topics.specs) == before


@pytest.mark.kafka
async def test_eight_at_once_all_succeed(topics: TestTopics) -> None:
    wanted = specs(f"{topics.prefix}-many", partitions=2)
    await asyncio.gather(*(ensure_topics(topics.bootstrap, wanted) for _ in range(8)))
    assert all(topic.partitions == 2 for topic in await describe_topics(topics.bootstrap, wanted))


@pytest.mark.kafka
async def test_a_missing_topic_is_described_as_missing_and_not_made(topics: TestTopics) -> None:
    wanted = specs(f"{topics.prefix}-never")
    for _ in range(2):
        found = await describe_topics(topics.bootstrap, wanted)
        assert [(topic.exists, topic.partitions, topic.problems) for topic in found] == [
            (False, 0, ("does not exist",))
        ] * 5


@pytest.mark.kafka
async def test_other_partition_counts_are_a_mismatch_that_names_topic_and_both_counts(topics: TestTopics) -> None:
    with pytest.raises(TopicMismatch, match=f"{topics.names.telemetry}.* 4 partitions and should have 12.*prefix"):
        await ensure_topics(topics.bootstrap, specs(topics.prefix, partitions=12))


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cleanup.policy": "compact"}, "cleanup.policy is delete and should be compact"),
        ({"message.timestamp.type": "CreateTime"}, "message.timestamp.type is LogAppendTime and should be CreateTime"),
    ],
)
async def test_settings_that_change_the_meaning_of_the_log_are_a_mismatch(
    topics: TestTopics, change: Mapping[str, str], message: str
) -> None:
    telemetry = replace(topics.specs[0], config={**topics.specs[0].config, **change})
    with pytest.raises(TopicMismatch, match=message):
        await ensure_topics(topics.bootstrap, [telemetry])
    assert message in (await describe_topics(topics.bootstrap, [telemetry]))[0].problems


@pytest.mark.kafka
async def test_settings_that_an_operator_may_tune_are_no_mismatch(topics: TestTopics) -> None:
    await ensure_topics(topics.bootstrap, specs(topics.prefix, retention_ms=3_600_000))


@pytest.mark.kafka
async def test_a_setting_that_kafka_refuses_is_reported_with_its_reason_at_once(topics: TestTopics) -> None:
    bad = replace(topics.specs[0], name=f"{topics.prefix}.bad", config={"retention.ms": "soon"})
    with pytest.raises(TopicRefused, match=r"\.bad: .*retention\.ms"):
        await ensure_topics(topics.bootstrap, [bad])


@pytest.mark.kafka
async def test_more_copies_than_brokers_are_refused_after_waiting_for_brokers(topics: TestTopics) -> None:
    with pytest.raises(TopicRefused, match=r"replication factor of 30"):
        await ensure_topics(topics.bootstrap, specs(f"{topics.prefix}-wide", replication=30), timeout_s=1.0)


@pytest.mark.kafka
async def test_records_are_counted_and_telemetry_is_stamped_by_the_broker(topics: TestTopics) -> None:
    long_ago_ms = 1_000_000
    producer = AIOKafkaProducer(bootstrap_servers=topics.bootstrap, acks="all")
    await producer.start()
    try:
        key = b"engine-3"
        sent = await producer.send_and_wait(topics.names.telemetry, b"x", key=key, timestamp_ms=long_ago_ms)
        await producer.send_and_wait(topics.names.telemetry, b"y", key=key, timestamp_ms=long_ago_ms)
    finally:
        await producer.stop()
    assert sent.partition == partition_for(key, 4)
    assert sent.timestamp > long_ago_ms
    telemetry = (await describe_topics(topics.bootstrap, topics.specs))[0]
    assert telemetry.records == 2
    assert telemetry.end_offsets[sent.partition] == 2


@pytest.mark.kafka
async def test_the_state_topic_keeps_the_newest_record_of_a_key_and_drops_older_ones(topics: TestTopics) -> None:
    # One-second segments instead of ten, to see the compaction within the test's patience.
    state = replace(
        topics.specs[2],
        name=f"{topics.prefix}.compacted",
        partitions=1,
        config={**topics.specs[2].config, "segment.ms": "1000", "max.compaction.lag.ms": "1000"},
    )
    await ensure_topics(topics.bootstrap, [state])
    place = TopicPartition(state.name, 0)
    producer = AIOKafkaProducer(bootstrap_servers=topics.bootstrap, acks="all")
    await producer.start()
    consumer = AIOKafkaConsumer(bootstrap_servers=topics.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([place])
        written, first = 0, 0
        async with asyncio.timeout(60):
            while first == 0:  # until the record at offset 0, an old value of the key, is gone
                await producer.send_and_wait(state.name, b"%d" % written, key=b"engine-1")
                written += 1
                await consumer.seek_to_beginning(place)
                first = (await consumer.getone()).offset
                await asyncio.sleep(0.2)
    finally:
        await consumer.stop()
        await producer.stop()
    assert 0 < first < written


async def test_a_broker_that_is_down_gives_one_error_with_its_address_after_the_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = f"127.0.0.1:{ports.choose_free('127.0.0.1')}"
    said = f"{address} within 0.6 s.*KAFKA__BOOTSTRAP"
    with caplog.at_level(logging.INFO), pytest.raises(BusUnavailable, match=said):
        await ensure_topics(address, specs(), timeout_s=0.6)
    with pytest.raises(BusUnavailable, match=address):
        await describe_topics(address, specs())
    assert [record for record in caplog.records if record.name.startswith("aiokafka")] == []


async def test_a_server_that_never_answers_gives_the_same_error() -> None:
    closed = asyncio.Semaphore(0)

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        closed.release()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BusUnavailable, match=str(port)):
            await ensure_topics(f"127.0.0.1:{port}", specs(), timeout_s=0.6)
        async with asyncio.timeout(5):  # the client leaves no connection open: one that knocked, one that asked
            await closed.acquire()
            await closed.acquire()


async def test_an_address_without_a_port_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"'kafka\.example' should be host:port"):
        await ensure_topics("kafka.example", specs())


@pytest.mark.kafka
async def test_reading_an_empty_topic_ends_at_once(topics: TestTopics) -> None:
    async with asyncio.timeout(20):
        assert [record async for record in read_log(topics.bootstrap, topics.names.dead_letters)] == []
