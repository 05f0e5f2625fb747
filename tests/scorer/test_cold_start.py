"""A fleet of 1,000: how soon a router that starts knows all of it, and a scorer that was killed goes on."""

import asyncio
import time
from pathlib import Path

import pytest

from evenload.bus.snapshots import SnapshotReader
from evenload.bus.topics import partition_for
from evenload.routing import FleetView
from evenload.schemas import Batch, FirstToken, SnapshotBatch
from evenload.scoring import DEFAULT
from tests.kafka_fixtures import TestTopics
from tests.scorer.worker import WorkerProcess, running, wait_for, write

pytestmark = pytest.mark.kafka

PARTITIONS = 4
FLEET = {f"gpu-{number}": partition_for(b"gpu-%d" % number, PARTITIONS) for number in range(1_000)}
COMPLETE_S = 3.0


async def complete_after_s(topics: TestTopics) -> float:
    """Start a router's view, and return how long it takes until it has a snapshot of every instance."""
    view = FleetView(dict.fromkeys(FLEET, DEFAULT), FLEET, incarnation=1, log_ms=0)
    missing = set(FLEET)

    def take(_: int, offset: int, batch: SnapshotBatch) -> None:
        view.take(offset, batch, 0.0)
        missing.difference_update(item.state.instance for item in batch.snapshots)

    begun = time.monotonic()
    async with SnapshotReader(topics.bootstrap, topics.prefix, PARTITIONS, take), asyncio.timeout(30):
        while missing:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert all(view.snapshot(name) is not None for name in FLEET)
    return time.monotonic() - begun


async def test_a_router_knows_1000_instances_3_s_after_its_start_and_a_killed_scorer_is_soon_back(
    topics: TestTopics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = WorkerProcess(tmp_path, topics.bootstrap, topics.prefix)
    with running(worker):
        records: list[tuple[int, Batch | bytes]] = [
            (
                home,
                Batch(v=1, producer="t", incarnation=number, seq=0, events=[FirstToken(instance=name, ttft_ms=50.0)]),
            )
            for number, (name, home) in enumerate(FLEET.items())
        ]
        await write(topics.bootstrap, topics.names.telemetry, records)
        await asyncio.to_thread(wait_for, lambda: worker.metric("states_written_total") >= len(FLEET))
        took_s = [await complete_after_s(topics) for _ in range(3)]
        worker.kill()
        begun = time.monotonic()
        worker.start()
        await asyncio.to_thread(wait_for, worker.ready)
        back_s = time.monotonic() - begun
        await asyncio.to_thread(wait_for, lambda: worker.metric("snapshots_total") >= len(FLEET))
        published_s = time.monotonic() - begun
    with capsys.disabled():
        print(
            f"\n1,000 instances: a view is complete after {max(took_s):.2f} s at most; a killed scorer is ready after "
            f"{back_s:.1f} s and has published all after {published_s:.1f} s"
        )
    assert max(took_s) <= COMPLETE_S
