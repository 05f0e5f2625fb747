"""Reports of another gateway, all the way: HTTP, Kafka, Faust, the snapshot; and each counts once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from evenload.api.keys import new_key
from evenload.broker import ports
from evenload.bus.snapshots import SnapshotReader
from evenload.collector.main import Collector
from evenload.schemas import InstanceSnapshot, SnapshotBatch
from evenload.settings import Settings
from tests.kafka_fixtures import TestTopics
from tests.scorer.worker import WorkerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]

INSTANCE = "i-0"  # of the worker's settings


class Seen:
    """The newest snapshot."""

    def __init__(self) -> None:
        self.newest: InstanceSnapshot | None = None

    def __call__(self, _partition: int, _offset: int, batch: SnapshotBatch) -> None:
        for snapshot in batch.snapshots:
            if snapshot.state.instance == INSTANCE:
                self.newest = snapshot

    async def until(self, **state: int) -> InstanceSnapshot:
        async with asyncio.timeout(30):
            while self.newest is None or any(getattr(self.newest.state, k) != v for k, v in state.items()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return self.newest


@contextlib.asynccontextmanager
async def collecting(settings: Settings) -> AsyncIterator[Collector]:
    collector, stop = Collector(settings), asyncio.Event()
    collector.probes.port = 0
    running = asyncio.create_task(collector.run(stop))
    try:
        async with asyncio.timeout(20):
            while not collector.emitter.alive:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield collector
    finally:
        stop.set()
        await running


def report(seq: int, kind: str, count: int) -> dict[str, Any]:
    event = {"type": "outcome", "instance": INSTANCE, "kind": kind, "status": 200 if kind == "ok" else 500}
    return {"producer": "other-gateway", "session": "first-life", "seq": seq, "events": [event] * count}


async def test_a_reported_outcome_moves_the_score_and_a_report_sent_again_does_not(
    topics: TestTopics, tmp_path: Path
) -> None:
    secret, line = new_key("other-team")
    (tmp_path / "keys").write_text(line)
    listen = f"127.0.0.1:{ports.choose_free('127.0.0.1')}"
    pool = {"name": "p", "models": ["m"], "instances": [{"id": INSTANCE, "url": "http://127.0.0.1:1", "kind": "none"}]}
    settings = Settings.model_validate(
        {
            "kafka": {"bootstrap": topics.bootstrap, "topic_prefix": topics.prefix},
            "pools": [pool],
            "collector": {"name": "c", "ingest": {"listen": listen, "keys_file": str(tmp_path / "keys")}},
        }
    )
    seen = Seen()
    headers = {"authorization": f"Bearer {secret}"}
    worker = WorkerProcess(tmp_path, topics.bootstrap, topics.prefix)
    worker.start()
    try:
        async with (
            SnapshotReader(topics.bootstrap, topics.prefix, 4, seen),
            aiohttp.ClientSession(f"http://{listen}", headers=headers) as session,
        ):

            async def post(seq: int, kind: str, count: int) -> Any:
                async with session.post("/v1/telemetry", json=report(seq, kind, count)) as answer:
                    assert answer.status == 202
                    return await answer.json()

            async with collecting(settings) as collector:
                assert await post(0, "ok", 20) == {"accepted": 20, "duplicates": 0}
                good = await seen.until(successes=20, errors=0)
                assert await post(1, "http_error", 5) == {"accepted": 5, "duplicates": 0}
                assert await post(1, "http_error", 5) == {"accepted": 0, "duplicates": 5}
                bad = await seen.until(successes=20, errors=5)
                assert bad.error == 1.0  # 5 of 25 failed, and a fifth is as bad as it gets
                assert bad.raw < good.raw - 30
                page = collector._metrics().body.decode()
                assert 'evenload_collector_reports_total{answer="accepted"} 2.0' in page
                assert "evenload_collector_reported_events_total 25.0" in page
            async with collecting(settings):  # another life of the collector, which knows of nothing
                assert await post(1, "http_error", 5) == {"accepted": 5, "duplicates": 0}
                assert await post(2, "ok", 1) == {"accepted": 1, "duplicates": 0}
                await seen.until(successes=21, errors=5)
    finally:
        worker.kill()
