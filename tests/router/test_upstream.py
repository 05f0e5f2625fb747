"""The HTTP client, over real sockets, against an upstream that does anything at byte level."""

import asyncio

import pytest

from evenload.router.connection import BUFFER_HIGH_BYTES, HEAD_BYTES_MAX
from evenload.router.fake_wire import END, SSE_HEAD, Cut, Gate, Reset, Stall, Trickle, chunk, response
from evenload.router.fakes import ScriptedUpstream
from evenload.router.shape import Shape
from evenload.router.upstream import BadResponse, ConnectFailed, Upstream, UpstreamError, UpstreamReset
from evenload.settings.instance_keys import FixedKey
from tests.router.asking import OK, ask, ask_all


async def test_a_body_goes_out_and_comes_back_byte_for_byte() -> None:
    async with ScriptedUpstream([response(200, bytes(range(256)))]) as server:
        client = Upstream(server.url)
        assert await ask_all(client, b'\x00\xff{"a": 1}') == bytes(range(256))
        assert server.requests[0].body == b'\x00\xff{"a": 1}'
        assert server.requests[0].headers[b"host"] == server.url.removeprefix("http://").encode()
        client.close()


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_a_response_may_arrive_in_any_pieces(size: int) -> None:
    whole = SSE_HEAD + chunk(b"data: 1\n\n") + chunk(b"data: 2\n\n") + END
    async with ScriptedUpstream([Trickle(whole, size)]) as server:
        client = Upstream(server.url)
        assert await ask_all(client) == b"data: 1\n\ndata: 2\n\n"
        assert client.idle_connections == 1
        client.close()


async def test_informational_responses_are_skipped() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with ScriptedUpstream([early, OK]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        assert (answer.status, answer.header(b"link")) == (200, None)
        assert await answer.read_all(100) == b'{"ok":true}'
        answer.release()
        client.close()


async def test_trailers_are_dropped() -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(b"x"), b"0\r\nx-trailer: 1\r\n\r\n"]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        assert await answer.read_all(100) == b"x"
        assert answer.header(b"x-trailer") is None
        answer.release()
        client.close()


async def test_a_body_without_length_ends_with_the_connection() -> None:
    async with ScriptedUpstream([b"HTTP/1.1 200 OK\r\n\r\nsome", b" text", Cut()]) as server:
        client = Upstream(server.url)
        assert await ask_all(client) == b"some text"
        assert client.idle_connections == 0


async def test_no_content_needs_no_length() -> None:
    async with ScriptedUpstream([b"HTTP/1.1 204 No Content\r\n\r\n"]) as server:
        client = Upstream(server.url)
        assert await ask_all(client) == b""
        assert client.idle_connections == 1
        client.close()


@pytest.mark.parametrize(
    "script",
    [
        [b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfour", Cut()],
        [SSE_HEAD, chunk(b"four"), Cut()],
        [SSE_HEAD, b"a\r\nfour", Cut()],
        [b"HTTP/1.0 200 OK\r\n\r\nfour", Stall(0.05), Reset()],
    ],
)
async def test_an_end_before_the_end_is_a_reset_after_what_came(script: list[bytes]) -> None:
    async with ScriptedUpstream(script) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        assert await answer.read_chunk() == b"four"
        with pytest.raises(UpstreamReset) as caught:
            await answer.read_chunk()
        assert caught.value.sent_any_response
        answer.release()
        assert client.idle_connections == 0


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * (HEAD_BYTES_MAX + 1),
    ],
    ids=["not http", "upgrade", "two framings", "endless head"],
)
async def test_what_is_not_http_is_a_bad_response(data: bytes) -> None:
    async with ScriptedUpstream([data, Stall()]) as server:
        client = Upstream(server.url)
        with pytest.raises(BadResponse):
            await ask(client)


async def test_a_broken_chunk_size_is_a_bad_response_after_what_came() -> None:
    async with ScriptedUpstream([SSE_HEAD + chunk(b"x") + b"zz\r\n", Stall()]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        assert await answer.read_chunk() == b"x"
        with pytest.raises(BadResponse):
            await answer.read_chunk()
        answer.release()


async def test_read_all_has_a_limit() -> None:
    async with ScriptedUpstream([response(500, b"x" * 1000)]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        with pytest.raises(BadResponse):
            await answer.read_all(999)
        answer.release()


async def test_a_slow_reader_stops_the_upstream() -> None:
    piece = b"x" * 65536
    async with ScriptedUpstream([SSE_HEAD, *([chunk(piece)] * 800), END]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        written = -1
        while written != server.written_bytes:  # until it stands still
            written = server.written_bytes
            await asyncio.sleep(0.1)
        assert written < 16 * 1024 * 1024  # the rest of 52 MB waits; socket buffers hold some
        assert answer._connection is not None
        assert answer._connection._buffered < 2 * BUFFER_HIGH_BYTES + 65536
        total = 0
        while part := await answer.read_chunk():
            total += len(part)
        assert total == 800 * len(piece)
        answer.release()
        client.close()


@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        ("", b"/v1/completions"),
        ("/", b"/v1/completions"),
        ("/a/b", b"/a/b/v1/completions"),
        ("/x/v1", b"/x/v1/completions"),
    ],
)
async def test_the_path_prefix_of_the_base_url_is_honoured(prefix: str, path: bytes) -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url + prefix)
        await ask_all(client)
        assert server.requests[0].path == path
        client.close()


async def test_fixed_headers_go_with_each_request() -> None:
    async with ScriptedUpstream([OK]) as server:
        client = Upstream(server.url, shape=Shape(key=FixedKey("of-the-instance")))
        await ask_all(client)
        assert server.requests[0].headers[b"authorization"] == b"Bearer of-the-instance"
        client.close()


def test_all_errors_have_one_base() -> None:
    assert all(issubclass(kind, UpstreamError) for kind in (ConnectFailed, UpstreamReset, BadResponse))


async def test_silence_is_counted_from_the_last_byte_and_not_while_nobody_reads() -> None:
    more = asyncio.Event()
    async with ScriptedUpstream([SSE_HEAD, chunk(b"a"), Gate(more), chunk(b"b"), Stall()]) as server:
        client = Upstream(server.url)
        answer = await ask(client)
        assert await answer.read_chunk() == b"a"
        assert [len(client.silent(2, 9)) for _ in range(4)] == [0, 0, 1, 1]
        more.set()
        assert await answer.read_chunk() == b"b"
        answer.pause()
        assert [len(client.silent(2, 9)) for _ in range(4)] == [0, 0, 0, 0]
        answer.resume()
        assert [len(client.silent(2, 9)) for _ in range(4)] == [0, 0, 1, 1]
        client.silent(2, 9)[0].give_up("gone")
        with pytest.raises(UpstreamReset, match="gone"):
            await answer.read_chunk()
        answer.release()
        assert client.silent(2, 9) == []
        client.close()


async def test_an_answer_whose_head_has_not_come_may_be_silent_for_longer() -> None:
    async with ScriptedUpstream([Stall()]) as server:
        client = Upstream(server.url)
        task = asyncio.create_task(ask(client))
        while not server.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert [len(client.silent(1, 3)) for _ in range(5)] == [0, 0, 0, 1, 1]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert client.silent(1, 3) == []
