"""Which connections the HTTP client keeps, uses again and gives up; what it repeats on a fresh one. Real sockets."""

import asyncio

import pytest

from evenload.router.fake_wire import SSE_HEAD, Cut, Gate, Reset, Stall, chunk, response
from evenload.router.fakes import ScriptedUpstream
from evenload.router.upstream import Upstream, UpstreamReset
from tests.router.asking import OK, ask, ask_all


async def test_a_connection_is_used_again_after_release() -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url)
        for _ in range(5):
            await ask_all(client)
        assert (server.connections, client.idle_connections) == (1, 1)
        client.close()


async def test_the_pool_hands_out_the_connection_used_last() -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url)
        first, second = await asyncio.gather(ask(client), ask(client))
        for answer in (first, second):
            await answer.read_all(100)
            answer.release()
        await ask_all(client)
        await ask_all(client)
        assert server.requests[2].connection == server.requests[3].connection
        assert server.connections == 2
        client.close()


async def test_the_pool_is_bounded() -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url, idle_connections_max=2)
        await asyncio.gather(*(ask_all(client) for _ in range(6)))
        assert client.idle_connections <= 2
        client.close()


async def test_connections_idle_for_too_long_are_closed_without_traffic() -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url, idle_seconds=0.05)
        await ask_all(client)
        async with asyncio.timeout(5):
            while client.idle_connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await ask_all(client)
        assert server.connections == 2
        client.close()


async def test_a_body_not_read_to_its_end_closes_the_connection() -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(b"one"), Stall()]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        assert await answer.read_chunk() == b"one"
        answer.release()
        async with asyncio.timeout(5):
            while not server.aborts:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert client.idle_connections == 0


async def test_a_close_without_a_byte_on_a_fresh_connection_is_not_repeated() -> None:
    async with ScriptedUpstream([Cut()], [OK]) as server:
        client = Upstream(server.url)
        with pytest.raises(UpstreamReset) as caught:
            await ask(client)
        assert not caught.value.sent_any_response
        assert len(server.requests) == 1


@pytest.mark.parametrize("end", [Cut(), Reset()])
async def test_a_close_without_a_byte_on_a_reused_connection_is_repeated_once_on_a_fresh_one(end: Cut) -> None:
    async with ScriptedUpstream([OK], [end], [OK]) as server:
        client = Upstream(server.url)
        await ask_all(client)
        assert await ask_all(client) == b'{"ok":true}'
        assert [seen.connection for seen in server.requests] == [1, 1, 2]
        assert client.stale_retries == 1
        client.close()


async def test_the_repetition_is_not_repeated() -> None:
    async with ScriptedUpstream([OK], [Cut()], [Cut()], [OK]) as server:
        client = Upstream(server.url)
        await ask_all(client)
        with pytest.raises(UpstreamReset):
            await ask_all(client)
        assert len(server.requests) == 3


async def test_a_loss_after_the_first_byte_is_never_repeated() -> None:
    async with ScriptedUpstream([OK], [b"HTTP/1.1 2", Cut()], [OK]) as server:
        client = Upstream(server.url)
        await ask_all(client)
        with pytest.raises(UpstreamReset) as caught:
            await ask_all(client)
        assert caught.value.sent_any_response
        assert len(server.requests) == 2


async def test_a_connection_closed_while_idle_is_not_used() -> None:
    async with ScriptedUpstream([OK, Stall(0.02), Cut()]) as server:
        client = Upstream(server.url, idle_seconds=60.0)  # the sweep is not what ends it
        await ask_all(client)
        async with asyncio.timeout(5):
            while client.idle_connections:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await ask_all(client)
        assert client.stale_retries == 0
        client.close()


async def test_bytes_nobody_asked_for_are_never_an_answer() -> None:
    async with ScriptedUpstream([OK + response(200, b"smuggled"), Stall()]) as server:
        client = Upstream(server.url)
        assert await ask_all(client) == b'{"ok":true}'
        assert client.idle_connections == 0


async def test_bytes_that_come_while_idle_end_the_connection() -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream([OK, Gate(gate), response(408, b"late"), Stall()], [OK]) as server:
        client = Upstream(server.url, idle_seconds=60.0)  # the sweep is not what ends it
        await ask_all(client)
        gate.set()
        async with asyncio.timeout(5):
            while client.idle_connections:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert await ask_all(client) == b'{"ok":true}'
        client.close()


async def test_connection_close_is_obeyed() -> None:
    async with ScriptedUpstream([response(200, b"{}", ("connection", "close"))]) as server:
        client = Upstream(server.url)
        await ask_all(client)
        assert client.idle_connections == 0


async def test_a_cancelled_request_ends_the_connection() -> None:
    async with ScriptedUpstream([Stall()]) as server:
        client = Upstream(server.url)
        task = asyncio.create_task(ask(client))
        while not server.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(1):
            while not server.aborts:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_a_lost_connection_drops_its_parser_which_refers_back_to_it() -> None:
    async with ScriptedUpstream([OK, Cut()]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        await answer.read_all(100)
        connection = answer._connection
        assert connection is not None
        answer.abort()
        await asyncio.sleep(0.01)
        assert connection._parser is None
