"""A connection is used again only when nothing of the last exchange is left on it, at either end."""

import asyncio

import pytest

from evenload.router.connection import BUFFER_HIGH_BYTES
from evenload.router.fake_wire import DONE, END, SSE_HEAD, chunk, content, finish, response
from evenload.router.fakes import ScriptedUpstream, post
from evenload.router.upstream import BadResponse, Upstream
from tests.router.stage import PLAIN, STREAM, stage

MINE = b"bytes of another's answer "
OK = response(200, b'{"for": "the next"}')


def chunked(status: bytes, *parts: bytes) -> bytes:
    head = b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(map(chunk, parts)) + END


async def until_complete(response: object) -> None:
    """Wait until the message has arrived, without reading it."""
    async with asyncio.timeout(5):
        while not response._connection.complete:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "answer", [chunked(b"200 OK", MINE * 100, MINE * 100), response(200, MINE * 5000)], ids=["chunked", "length"]
)
@pytest.mark.parametrize("read_first", [True, False], ids=["begun", "unread"])
async def test_what_was_not_read_of_an_answer_never_meets_the_next_one(answer: bytes, read_first: bool) -> None:
    async with ScriptedUpstream([answer], [OK]) as server:
        client = Upstream(server.url)
        first = await client.request("POST", b"/", [], b"{}")
        if read_first:
            assert await first.read_chunk()
        await asyncio.sleep(0.05)  # the rest arrives
        first.release()
        second = await client.request("POST", b"/", [], b"{}")
        assert await second.read_all(1000) == b'{"for": "the next"}'
        second.release()
        client.close()


async def test_an_error_body_over_its_bound_does_not_meet_the_next_answer() -> None:
    async with ScriptedUpstream([chunked(b"400 Bad", *[MINE * 1500] * 3)], [OK]) as server:
        client = Upstream(server.url)
        first = await client.request("POST", b"/", [], b"{}")
        await until_complete(first)
        with pytest.raises(BadResponse):
            await first.read_all(64 * 1024)
        first.release()
        second = await client.request("POST", b"/", [], b"{}")
        assert await second.read_all(1000) == b'{"for": "the next"}'
        second.release()
        client.close()


async def test_a_large_error_to_one_client_does_not_reach_another() -> None:
    async with stage([[chunked(b"400 Bad", *[MINE * 1500] * 3)], [OK]]) as s:
        assert (await post(s.url, PLAIN)).status >= 400
        for _ in range(3):
            assert (await post(s.url, PLAIN)).body == b'{"for": "the next"}'


async def test_a_connection_that_was_paused_at_its_last_byte_serves_the_next_request() -> None:
    body = b"x" * (2 * BUFFER_HIGH_BYTES)
    async with ScriptedUpstream([response(200, body)], [OK]) as server:
        client = Upstream(server.url)
        first = await client.request("POST", b"/", [], b"{}")
        got = 0

        def take(data: bytes) -> None:
            nonlocal got
            got += len(data)
            if got == len(body):
                first.pause()  # as a client that does not read has it

        async with asyncio.timeout(5):
            await first.pipe(take)
        first.release()
        assert client.idle_connections == 1
        async with asyncio.timeout(2):
            second = await client.request("POST", b"/", [], b"{}")
            assert await second.read_all(1000) == b'{"for": "the next"}'
        second.release()
        assert server.connections == 1
        client.close()


async def test_a_connection_whose_engine_answered_before_it_had_read_the_request_is_not_used_again() -> None:
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await over.wait()  # and reads no more
        writer.transport.abort()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, limit=4096) as server:
        client = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        first = await client.request("POST", b"/", [], b"x" * 32_000_000)
        assert await first.read_all(1000) == b'{"for": "the next"}'
        first.release()
        assert client.idle_connections == 0
        client.close()
        over.set()
        await asyncio.sleep(0.01)


async def test_streams_of_clients_that_left_do_not_reach_others() -> None:
    long = [SSE_HEAD, *[chunk(content("mine " * 2000))] * 40, chunk(finish()) + chunk(DONE) + END]
    async with stage(long) as s:
        host, port = s.url.removeprefix("http://").split(":")
        for _ in range(3):
            _, writer = await asyncio.open_connection(host, int(port), limit=1024)
            body = b'{"model":"tiny","stream":true,"messages":[]}'
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
            await asyncio.sleep(0.05)
            writer.transport.abort()
            got = await post(s.url, STREAM)
            assert got.status == 200
            assert got.body.count(b"mine") == 40 * 2000
            assert got.body.count(b"[DONE]") == 1
