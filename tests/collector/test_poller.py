"""Polling a scripted engine."""

import asyncio
import time
from collections.abc import Callable
from contextlib import closing

from evenload.collector.fakes import ScriptedServer, ok
from evenload.collector.poller import Poller
from evenload.collector.watch import Watch
from evenload.schemas import EngineGauges, Event, Membership

PAGE = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n"


def poller_of(server: ScriptedServer, events: list[Event], timeout_s: float = 0.2) -> Poller:
    return Poller(Watch("gpu-1", 20), server.url, timeout_s, events.append)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (the condition is what is waited for)
            await asyncio.sleep(0.005)


async def test_a_poll_tells_gauges_and_readiness() -> None:
    events: list[Event] = []
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
        with closing(poller_of(server, events)) as poller:
            await poller.poll()
    assert events == [
        EngineGauges(instance="gpu-1", running=3, waiting=1, kv_usage=0.5),
        Membership(instance="gpu-1", change="ready"),
    ]


async def test_an_engine_that_goes_and_comes_back_is_not_ready_and_ready_again() -> None:
    events: list[Event] = []
    server = ScriptedServer()
    server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
    await server.start()
    poller = poller_of(server, events)
    running = asyncio.create_task(poller.run(0))

    def changes() -> list[tuple[str, str]]:
        return [(event.change, event.cause) for event in events if isinstance(event, Membership)]

    await until(lambda: changes() == [("ready", "")])
    await server.stop()
    await until(lambda: changes() == [("ready", ""), ("not_ready", "refused")])
    await server.start()
    await until(lambda: changes() == [("ready", ""), ("not_ready", "refused"), ("ready", "")])
    running.cancel()
    await asyncio.wait([running])
    await server.stop()


async def test_a_hanging_engine_holds_up_one_poll_at_a_time_and_stays_a_member() -> None:
    events: list[Event] = []
    async with ScriptedServer() as server:
        server.answers = {"/metrics": None}
        poller = poller_of(server, events, timeout_s=0.1)
        running = asyncio.create_task(poller.run(0))
        await until(lambda: poller.failed >= 3)
        assert server.connections <= poller.polls
        assert not events
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
        await until(lambda: len(events) >= 2)
        assert poller.watch.failures == 0
        running.cancel()
        await asyncio.wait([running])


async def test_a_page_with_an_error_status_leads_to_a_look_at_health() -> None:
    events: list[Event] = []
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(b"", 500), "/health": ok(b"", 503)}
        with closing(poller_of(server, events)) as poller:
            await poller.poll()
    assert events == [Membership(instance="gpu-1", change="not_ready", cause="health_503")]


async def test_a_poll_never_takes_longer_than_its_limit() -> None:
    events: list[Event] = []
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": None}
        begun_s = time.monotonic()
        with closing(poller_of(server, events, timeout_s=0.1)) as poller:
            await poller.poll()
        assert time.monotonic() - begun_s < 2
    assert [type(event) for event in events] == [EngineGauges]
