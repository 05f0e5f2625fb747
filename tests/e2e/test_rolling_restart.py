"""Three replicas are restarted one after the other under load: no request is lost."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenload.cli.supervise import Child
from evenload.demo.engine_server import EngineFleet, EngineServer
from evenload.router.fakes import post
from evenload.router.upstream import UpstreamError
from tests.e2e import fleet
from tests.e2e.replica import Replica

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

WORKERS = 12
ANNOUNCE_S = 1.0


async def work(replicas: list[Replica], turns: Iterator[int], tokens: int, ends: Counter[str]) -> None:
    """Stream one answer after the other through whichever replicas are ready; nothing is tried twice."""
    ask = {"model": fleet.MODEL, "stream": True, "max_tokens": tokens}
    body = json.dumps({**ask, "messages": [{"role": "user", "content": "Hello"}]}).encode()
    while True:
        ready = [replica for replica in replicas if replica.ready]
        replica = ready[next(turns) % len(ready)]
        headers = [(b"content-type", b"application/json")]
        try:
            answer = await replica.client.request("POST", b"/v1/chat/completions", headers, body)
            try:
                text = await answer.read_all(1_000_000)
            finally:
                answer.release()
            ends["whole" if b"[DONE]" in text and b'"error"' not in text else f"broken, {answer.status}"] += 1
        except UpstreamError as error:
            ends[f"{type(error).__name__} {error.cause}"] += 1


async def restart(number: int, child: Child, replica: Replica, folder: Path) -> Child:
    """SIGTERM, the end, and a new process in its place."""
    stopping = asyncio.create_task(asyncio.to_thread(child.stop))
    page = await fleet.becomes(replica.settings.router.port, "/readyz", lambda page: not page["ready"], ANNOUNCE_S)
    assert page["reasons"] == ["the router is leaving"]  # said at once, while it still answers
    await stopping
    assert child.returncode == 0
    new = await asyncio.to_thread(fleet.start, f"router-{number}", "router", replica.settings, folder)
    async with asyncio.timeout(60):
        while not replica.ready:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return new


async def test_a_rolling_restart_under_load_drops_no_request(tmp_path: Path) -> None:
    engines = fleet.engines(2)
    await engines.start()
    options: dict[str, Any] = {"announce_s": ANNOUNCE_S, "drain_s": 20}
    replicas = [Replica(fleet.settings_for(engines, "127.0.0.1:1", "nowhere", **options)) for _ in range(3)]
    children = [
        await asyncio.to_thread(fleet.start, f"router-{number}", "router", replica.settings, tmp_path)
        for number, replica in enumerate(replicas)
    ]
    tasks = [asyncio.create_task(replica.poll()) for replica in replicas]
    ends: Counter[str] = Counter()
    try:
        async with asyncio.timeout(60):
            while not all(replica.ready for replica in replicas):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        turns = itertools.count()
        tasks += [asyncio.create_task(work(replicas, turns, 2 + 20 * (n % 4), ends)) for n in range(WORKERS)]
        for number, replica in enumerate(replicas):
            children[number] = await restart(number, children[number], replica, tmp_path)
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in replicas:
            replica.client.close()
        await asyncio.gather(*(asyncio.to_thread(child.stop) for child in children))
        await engines.stop()
    assert set(ends) == {"whole"}
    assert ends["whole"] > 200
    assert sum(replica.client.stale_retries for replica in replicas) == 0  # no connection was closed under a request


async def test_a_router_that_leaves_serves_on_while_it_announces_it_and_then_finishes_what_is_long(
    tmp_path: Path,
) -> None:
    engines = EngineFleet([EngineServer(name="engine", model=fleet.MODEL, speed=1.0)])
    await engines.start()
    replica = Replica(fleet.settings_for(engines, "127.0.0.1:1", "nowhere", announce_s=ANNOUNCE_S, drain_s=20))
    child = await asyncio.to_thread(fleet.start, "router", "router", replica.settings, tmp_path)
    polling = asyncio.create_task(replica.poll())
    loop = asyncio.get_running_loop()
    ask = {"model": fleet.MODEL, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    try:
        async with asyncio.timeout(60):
            while not replica.ready:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        long = asyncio.create_task(post(replica.url, {**ask, "max_tokens": 600}))
        await asyncio.sleep(0.5)
        stopping, began_s = asyncio.create_task(asyncio.to_thread(child.stop)), loop.time()
        await asyncio.sleep(0.7 * ANNOUNCE_S)
        assert not replica.ready
        late = await post(replica.url, {**ask, "max_tokens": 1})  # by who has not seen it yet
        assert (late.status, b"[DONE]" in late.body) == (200, True)
        got = await long
        assert loop.time() - began_s > 2 * ANNOUNCE_S, "it ended before it could have been cut off"
        assert (got.whole, b"[DONE]" in got.body, b'"error"' in got.body) == (True, True, False)
        await stopping
        assert child.returncode == 0
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        replica.client.close()
        await asyncio.to_thread(child.stop)
        await engines.stop()
