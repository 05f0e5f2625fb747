"""The GET client against a server that does as it is told."""

import asyncio
from contextlib import closing

import pytest

from evenload.collector import http_get
from evenload.collector.fakes import ScriptedServer, ok
from evenload.collector.http_get import GetError, HttpGetter


async def test_answers_come_over_one_kept_connection() -> None:
    async with ScriptedServer() as server:
        server.answers = {"/a": ok(b"one"), "/b": ok(b"", 503)}
        getter = HttpGetter(server.url)
        assert [await getter.get("/a"), await getter.get("/b"), await getter.get("/a")] == [
            (200, b"one"),
            (503, b""),
            (200, b"one"),
        ]
        assert server.connections == 1
        getter.close()


async def test_a_prefix_of_the_address_is_kept() -> None:
    async with ScriptedServer() as server:
        server.answers = {"/pool-a/metrics": ok(b"x")}
        getter = HttpGetter(server.url + "/pool-a")
        assert (await getter.get("/metrics")).status == 200
        getter.close()


async def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    async with ScriptedServer() as server:
        server.answers, server.close_after = {"/a": ok(b"one")}, True
        getter = HttpGetter(server.url)
        for _ in range(3):
            assert (await getter.get("/a")).body == b"one"
        assert server.connections == 3
        getter.close()


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
    ],
)
async def test_bodies_of_all_kinds_are_read(raw: bytes, body: bytes) -> None:
    async with ScriptedServer() as server:
        server.answers, server.close_after = {"/a": raw}, True
        with closing(HttpGetter(server.url)) as getter:
            assert await getter.get("/a") == (200, body)


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "cut"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "cut"),
        (b"", "cut"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "protocol"),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "protocol"),
    ],
)
async def test_broken_answers_have_a_cause(raw: bytes, cause: str) -> None:
    async with ScriptedServer() as server:
        server.answers, server.close_after = {"/a": raw}, True
        with pytest.raises(GetError) as caught:
            await HttpGetter(server.url).get("/a")
        assert caught.value.cause == cause


async def test_a_body_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_get, "BODY_BYTES_MAX", 1_000)
    async with ScriptedServer() as server:
        server.answers = {"/a": ok(b"x" * 10_000)}
        with pytest.raises(GetError, match="too_large: a body"):
            await HttpGetter(server.url).get("/a")


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "again", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n", "256 lines of headers"),
        (b"HTTP/1.1 200 OK\r\na: ", b"b" * 1024, "65536 bytes of headers"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "65536 bytes of headers"),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"a: b\r\n", "256 lines of headers"),
        (CHUNKED + b"1;", b"e" * 1024, "65536 bytes of headers"),
    ],
    ids=["lines", "one line", "interim answers", "trailers", "extensions of a chunk"],
)
async def test_headers_without_end_are_refused_long_before_the_time_is_up(
    begin: bytes, again: bytes, reason: str
) -> None:
    took: list[int] = []
    gone = asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)
        try:
            while True:
                took.append(len(again) * 40)
                writer.write(again * 40)
                await writer.drain()
        except OSError:
            writer.close()
            gone.set()

    async with await asyncio.start_server(pour, "127.0.0.1") as server, asyncio.timeout(30):
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(GetError, match=f"too_large: more than {reason}"):
            await HttpGetter(f"http://127.0.0.1:{port}").get("/health")
        await gone.wait()
    assert sum(took) < 20_000_000, "what the sockets' buffers held, and not what 30 s bring"


async def test_many_small_chunks_and_headers_of_usual_size_are_no_fault() -> None:
    lines = b"".join(b"x-%d: y\r\n" % number for number in range(200))
    page = b"vllm:num_requests_waiting 0\n" * 20_000
    chunks = b"".join(b"1d\r\n" + page[at : at + 0x1D] + b"\r\n" for at in range(0, len(page) // 0x1D * 0x1D, 0x1D))
    async with ScriptedServer() as server:
        server.answers = {"/a": CHUNKED.removesuffix(b"\r\n") + lines + b"\r\n" + chunks + b"0\r\n\r\n"}
        with closing(HttpGetter(server.url)) as getter:
            assert (await getter.get("/a")).body == page[: len(page) // 0x1D * 0x1D]


async def test_nobody_listening_is_refused() -> None:
    async with ScriptedServer() as server:
        url = server.url
    with pytest.raises(GetError) as caught:
        await HttpGetter(url).get("/a")
    assert caught.value.cause == "refused"


async def test_after_the_callers_time_is_up_the_late_answer_meets_nobody() -> None:
    async with ScriptedServer() as server:
        server.answers = {"/slow": None, "/a": ok(b"right")}
        getter = HttpGetter(server.url)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await getter.get("/slow")
        assert (await getter.get("/a")).body == b"right"
        assert server.connections == 2
        getter.close()
