"""Several collectors share instances and take over from each other."""

import asyncio
import time
from collections import Counter

from evenload.collector.fakes import ScriptedServer, ok
from evenload.collector.peers import Peers
from evenload.collector.poller import Poller
from evenload.collector.share import owner
from evenload.collector.watch import Watch
from evenload.schemas import EngineGauges, Event

PAGE = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n"
INSTANCES = [f"gpu-{n}" for n in range(3_000)]
THREE = ["http://a:1", "http://b:1", "http://c:1"]


def test_each_of_three_collectors_has_about_a_third_whatever_the_order_they_are_named_in() -> None:
    shares = Counter(owner(instance, THREE) for instance in INSTANCES)
    assert min(shares.values()) > 900  # of 1,000; a fair draw deviates by 26
    assert [owner(i, THREE) for i in INSTANCES] == [owner(i, frozenset(reversed(THREE))) for i in INSTANCES]


def test_when_one_goes_only_its_instances_move_and_they_spread() -> None:
    left = THREE[:2]
    moved = Counter(owner(i, left) for i in INSTANCES if owner(i, THREE) == THREE[2])
    assert min(moved.values()) > 400
    assert all(owner(i, left) == owner(i, THREE) for i in INSTANCES if owner(i, THREE) != THREE[2])


def test_a_collector_alone_has_everything() -> None:
    assert all(Peers("me", ()).owns(instance) for instance in INSTANCES)


async def until(condition: object, limit_s: float) -> float:
    begun_s = time.monotonic()
    async with asyncio.timeout(limit_s):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return time.monotonic() - begun_s


async def test_what_a_collector_that_dies_hangs_or_is_not_ready_had_is_taken_over_within_three_seconds() -> None:
    async with ScriptedServer() as peer:
        for gone in (ok(b"", 503), None, "killed"):
            peer.answers = {"/readyz": ok(b"")}
            me = Peers("http://me:1", ["http://me:1", peer.url])
            me.start()
            try:
                await until(lambda: len(me.live) == 2, 5)  # noqa: B023 (called at once)
                mine = sum(me.owns(instance) for instance in INSTANCES)
                assert 1_300 < mine < 1_700
                if gone == "killed":
                    await peer.stop()
                else:
                    peer.answers = {"/readyz": gone}  # type: ignore[dict-item]
                await until(lambda: all(me.owns(i) for i in INSTANCES), 3)  # noqa: B023
                if gone == "killed":
                    await peer.start()
                peer.answers = {"/readyz": ok(b"")}
                await until(lambda: len(me.live) == 2, 5)  # noqa: B023
                assert sum(me.owns(instance) for instance in INSTANCES) == mine
            finally:
                await me.close()


async def test_an_instance_of_another_collector_is_left_alone_until_it_is_ours() -> None:
    events: list[Event] = []
    ours = False
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
        poller = Poller(Watch("gpu-1", 20), server.url, 1.0, events.append, owned=lambda: ours)
        running = asyncio.create_task(poller.run(0))
        await asyncio.sleep(0.2)
        assert (server.requests, events) == ([], [])
        ours = True
        await until(lambda: len(events) == 2, 5)
        assert isinstance(events[0], EngineGauges)
        ours = False
        await until(lambda: poller.watch.ready is None, 5)
        asked = len(server.requests)
        await asyncio.sleep(0.2)
        assert len(server.requests) == asked
        ours = True
        await until(lambda: len(events) == 4, 5)  # what was said before is said again: it may have changed meanwhile
        running.cancel()
        await asyncio.wait([running])
