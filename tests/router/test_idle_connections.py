"""Which idle connections are not used again, in the moments before they are swept or known to be lost."""

from evenload.router.fake_wire import Stall, response
from evenload.router.fakes import ScriptedUpstream
from evenload.router.upstream import Upstream

OK = response(200, b"{}")


async def ask(client: Upstream) -> bytes:
    got = await client.request("POST", b"/", [], b"{}")
    try:
        return await got.read_all(100)
    finally:
        got.release()


async def test_what_is_no_http_behind_a_whole_answer_ends_the_connection() -> None:
    async with ScriptedUpstream([OK + b"\x00garbage\r\n\r\n", Stall()], [OK]) as server:
        client = Upstream(server.url)
        assert await ask(client) == b"{}"
        assert client.idle_connections == 0
        assert await ask(client) == b"{}"
        assert server.connections == 2
        client.close()


async def test_a_connection_that_is_being_closed_is_not_used() -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url)
        await ask(client)
        client._idle[0].data_received(b"HTTP/1.1 408 Too late\r\n\r\n")  # in the turn in which the next request comes
        assert await ask(client) == b"{}"
        assert (server.connections, client.stale_retries) == (2, 0)
        client.close()


async def test_a_connection_that_has_been_idle_for_too_long_is_not_used_before_it_is_swept_either() -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url, idle_seconds=60.0)
        await ask(client)
        client._idle[0].idle_since_s -= 61.0
        assert await ask(client) == b"{}"
        assert (server.connections, client.idle_connections) == (2, 1)
        client.close()
