"""F17: when a request is sent a second time because its connection turned out to be closed, and when it is not."""

import asyncio
from typing import Any

import pytest

from evenload.router.fake_wire import Cut, Gate, Stall, response
from evenload.router.fakes import ScriptedUpstream
from evenload.router.upstream import STALE_WINDOW_S, Upstream, UpstreamReset

OK = [response(200, b"{}")]


async def test_who_was_silent_for_long_may_have_generated_and_is_not_asked_a_second_time() -> None:
    async with ScriptedUpstream(OK, [Stall(STALE_WINDOW_S + 0.1), Cut()], OK) as server:
        client = Upstream(server.url)
        first = await client.request("POST", b"/", [], b"{}")
        assert await first.read_all(10) == b"{}"
        first.release()
        assert client.idle_connections == 1
        with pytest.raises(UpstreamReset):
            await client.request("POST", b"/", [], b"{}")
        assert (len(server.requests), client.stale_retries) == (2, 0)
        client.close()


async def test_it_goes_to_a_fresh_connection_though_others_are_idle_for_they_may_be_closed_too() -> None:
    both = asyncio.Event()
    held: list[Any] = [Gate(both), *OK]
    async with ScriptedUpstream(held, held, [Cut()]) as server:
        client = Upstream(server.url)
        asked = [asyncio.create_task(client.request("POST", b"/", [], b"{}")) for _ in range(2)]
        async with asyncio.timeout(5):
            while len(server.requests) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        both.set()
        for task in asked:
            got = await task
            await got.read_all(10)
            got.release()
        assert client.idle_connections == 2
        with pytest.raises(UpstreamReset):
            await client.request("POST", b"/", [], b"{}")
        assert [seen.connection > 2 for seen in server.requests[2:]] == [False, True]
        assert client.idle_connections == 1
        client.close()
