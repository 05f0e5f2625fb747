"""A body that is handed on as it comes, though some of it had come before."""

import asyncio

from evenload.router.connection import BUFFER_HIGH_BYTES
from evenload.router.fake_wire import response
from evenload.router.fakes import ScriptedUpstream
from evenload.router.upstream import Upstream


async def test_a_body_so_much_of_which_waits_that_it_is_not_read_any_more_is_read_to_its_end() -> None:
    body = b"x" * (8 * BUFFER_HIGH_BYTES)
    async with ScriptedUpstream([response(200, body)]) as server, asyncio.timeout(10):
        client = Upstream(server.url)
        got = await client.request("POST", b"/", [], b"{}")
        while not got._connection.is_paused:  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        pieces: list[bytes] = []
        await got.pipe(pieces.append)
        assert b"".join(pieces) == body
        got.release()
        client.close()
