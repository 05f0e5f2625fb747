"""Producers that share a name, one after the other or at once: the log keeps them apart, and nothing counts twice."""

import pytest

from evenload.bus.emitter import Emitter
from evenload.bus.log_reader import read_log
from evenload.bus.topics import partition_for
from evenload.schemas import Batch, Outcome, RouterLoad, SnapshotBatch, encode
from evenload.scorer.core import Options, PartitionScorer
from evenload.scoring import DEFAULT
from tests.kafka_fixtures import TestTopics

pytestmark = pytest.mark.kafka

ENGINE = "gpu-1"
PARTITION = partition_for(ENGINE.encode(), 4)


def router(topics: TestTopics) -> Emitter:
    return Emitter(topics.bootstrap, topics.prefix, "router-1", partitions=4)


async def tell(emitter: Emitter, in_flight: int, outcomes: int) -> None:
    """Report a load and some successes."""
    emitter.add(RouterLoad(instance=ENGINE, in_flight=in_flight, awaiting=1), 0)
    for _ in range(outcomes):
        emitter.add(Outcome(instance=ENGINE, kind="ok"), 0)
    assert await emitter.flush(20)


async def scored(topics: TestTopics) -> PartitionScorer:
    """Fold what the log has of the partition."""
    part = PartitionScorer(PARTITION, Options(heartbeat_ms=100.0), lambda _: DEFAULT)
    async for record in read_log(topics.bootstrap, topics.names.telemetry):
        if record.partition == PARTITION:
            assert part.on_record(record.offset, record.timestamp_ms, record.value or b"", 0.0) is None
    return part


def seen(batches: list[SnapshotBatch]) -> tuple[int, int, int]:
    ((one,),) = [batch.snapshots for batch in batches]
    return one.replicas, one.in_flight, one.state.successes


async def test_a_router_killed_and_started_again_with_its_name_loses_nothing_and_its_old_load_expires(
    topics: TestTopics,
) -> None:
    async with router(topics) as killed:  # nothing of what it does from here on matters: the log has all it will have
        await tell(killed, in_flight=5, outcomes=3)
        async with router(topics) as again:
            await tell(again, in_flight=2, outcomes=4)
            part = await scored(topics)
    assert again.incarnation != killed.incarnation
    assert seen(part.snapshots(0.0)) == (2, 7, 7)
    assert part.counts.duplicates == 0
    report = RouterLoad(instance=ENGINE, in_flight=1)
    later = Batch(v=1, producer="router-1", incarnation=again.incarnation, seq=100, events=[report])
    at_ms = part.states[ENGINE].log_ms + int(DEFAULT.load_expire_ms)
    part.on_record(part.position + 1, at_ms, encode(later), DEFAULT.load_expire_ms)
    assert seen(part.snapshots(DEFAULT.load_expire_ms + 10.0)) == (1, 1, 7)


async def test_two_routers_with_one_name_are_two_and_their_loads_add_up(topics: TestTopics) -> None:
    async with router(topics) as one, router(topics) as other:
        for _ in range(5):
            await tell(one, in_flight=5, outcomes=2)
            await tell(other, in_flight=3, outcomes=1)
        part = await scored(topics)
    assert seen(part.snapshots(0.0)) == (2, 8, 15)
    assert part.counts.duplicates == 0
    assert set(part.states[ENGINE].watermarks) == {one.incarnation, other.incarnation}
