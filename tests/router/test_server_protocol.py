"""What a client may send before the application sees it: sizes, times, and errors in the API's form."""

import asyncio
import json
import time
from typing import Any

import pytest

from evenload.router.fakes import FakeDispatcher, ScriptedUpstream, serve
from evenload.router.native import HttpProtocol
from evenload.router.proxy import Proxy
from evenload.router.server_protocol import BoundedProtocol, bounded
from tests.router.stage import GOOD, inner_app

HEADERS_MAX, URL_MAX = 4096, 1024
BODY = b'{"model":"m"}'


PROTOCOLS: dict[str, Any] = {"native": HttpProtocol, "uvicorn": BoundedProtocol}


def small(http_server: str) -> Any:
    return bounded(PROTOCOLS[http_server], HEADERS_MAX, URL_MAX)


def hurried(http_server: str) -> Any:
    return type("Hurried", (PROTOCOLS[http_server],), {"head_s": 0.2, "body_idle_s": 0.2})


def head(*, url: bytes = b"/v1/completions", headers: bytes = b"", length: int = len(BODY)) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n" % (url, headers, length)


async def said(url: str, *pieces: bytes | float) -> tuple[int, dict[str, Any]]:
    """Send pieces, a number being a pause; return status and body of the only answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    answer = asyncio.create_task(read(reader))
    try:
        for piece in pieces:
            if answer.done():  # the rest would meet a closed connection
                break
            if isinstance(piece, bytes):
                writer.write(piece)
                await asyncio.sleep(0.02)
            else:
                await asyncio.sleep(piece)
        return await asyncio.wait_for(answer, 5.0)
    finally:
        writer.close()


async def read(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    """Read one answer; of what is not JSON only the status."""
    status = await reader.readline()
    while (line := await reader.readline()).strip():
        assert b": " in line
    rest = await reader.read(4000)
    return int(status.split()[1]), json.loads(rest) if rest.startswith(b"{") else {}


def check(answer: tuple[int, dict[str, Any]], status: int, code: str) -> None:
    assert answer[0] == status, answer
    assert answer[1]["error"]["code"] == code
    assert answer[1]["error"]["type"] == ("api_error" if status >= 500 else "invalid_request_error")
    assert answer[1]["request_id"].startswith("req-")


@pytest.mark.parametrize("split", [1, 7])
async def test_sizes_are_bounded_whole_or_in_pieces(split: int, http_server: str) -> None:
    def pieces(data: bytes) -> list[bytes]:
        step = -(-len(data) // split)
        return [data[start : start + step] for start in range(0, len(data), step)]

    async with (
        ScriptedUpstream(GOOD) as engine,
        serve(Proxy(inner_app, FakeDispatcher({"a": engine.url})), http=small(http_server)) as url,
    ):
        long_url = b"/v1/completions?" + b"q" * URL_MAX
        check(await said(url, *pieces(head(url=long_url) + BODY)), 414, "url_too_long")
        many = b"".join(b"x-%d: %b\r\n" % (number, b"v" * 90) for number in range(60))
        check(await said(url, *pieces(head(headers=many) + BODY)), 431, "headers_too_large")
        big = b"x: %b\r\n" % (b"v" * HEADERS_MAX)
        check(await said(url, *pieces(head(headers=big) + BODY)), 431, "headers_too_large")
        assert engine.requests == []
        fits = b"x: %b\r\n" % (b"v" * (HEADERS_MAX - 200))
        reader = await said(url, *pieces(head(url=b"/nothing?" + b"q" * (URL_MAX - 20), headers=fits) + BODY), 0.0)
        assert reader[0] == 299


async def test_a_head_without_end_is_refused_before_it_is_kept(http_server: str) -> None:
    async with serve(inner_app, http=small(http_server)) as url:
        endless = b"GET / HTTP/1.1\r\nx: " + b"v" * 1000
        check(await said(url, endless, *[b"v" * 1000] * 8), 431, "headers_too_large")
        check(await said(url, b"GET /" + b"u" * 1000, *[b"u" * 1000] * 8), 414, "url_too_long")


async def test_a_large_body_before_the_next_head_does_not_count_as_head(http_server: str) -> None:
    async with (
        ScriptedUpstream(GOOD) as engine,
        serve(Proxy(inner_app, FakeDispatcher({"a": engine.url})), http=small(http_server)) as url,
    ):
        body = b'{"model":"m","prompt":"%b"}' % (b"x" * 30_000)
        second = b"GET /next HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        first = head(length=len(body)) + body
        status, _ = await said(url, first[:1000], first[1000:] + second[:10], second[10:])
        assert status == 200
        assert len(engine.requests) == 1


@pytest.mark.parametrize(
    "junk", [b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"]
)
async def test_what_is_not_http_is_told_so_in_the_apis_form(junk: bytes, http_server: str) -> None:
    async with serve(inner_app, http_server) as url:
        check(await said(url, junk), 400, "invalid_http")


async def test_who_sends_nothing_or_half_a_request_is_not_waited_for(http_server: str) -> None:
    async with (
        ScriptedUpstream(GOOD) as engine,
        serve(Proxy(inner_app, FakeDispatcher({"a": engine.url})), http=hurried(http_server)) as url,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        began_s = time.monotonic()
        assert await asyncio.wait_for(reader.read(), 2.0) == b""
        assert time.monotonic() - began_s < 1.0
        writer.close()
        check(await said(url, b"POST /v1/comp"), 408, "request_timeout")
        dripped = [piece for _ in range(6) for piece in (b"x", 0.05)]
        check(await said(url, b"POST /v1/comp", *dripped), 408, "request_timeout")
        check(await said(url, head(length=100) + BODY), 408, "request_timeout")
        assert engine.requests == []


async def test_a_body_that_comes_slowly_but_steadily_is_waited_for(http_server: str) -> None:
    async with (
        ScriptedUpstream(GOOD) as engine,
        serve(Proxy(inner_app, FakeDispatcher({"a": engine.url})), http=hurried(http_server)) as url,
    ):
        drip: list[bytes | float] = [piece for byte in BODY for piece in (bytes([byte]), 0.05)]
        close = head(headers=b"connection: close\r\n")
        assert (await said(url, close, *drip))[0] == 200
        assert engine.requests[0].body == BODY


async def test_a_connection_that_waits_between_requests_is_left_alone(http_server: str) -> None:
    async with serve(inner_app, http=hurried(http_server)) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        for _ in range(2):
            writer.write(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 299 ")
            await reader.readuntil(b"0\r\n\r\n")
            await asyncio.sleep(0.4)
        writer.close()


@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nhost: b\r\n"])
async def test_http_1_1_needs_one_host(hosts: bytes, http_server: str) -> None:
    async with serve(inner_app, http_server) as url:
        check(await said(url, b"GET /a HTTP/1.1\r\n%b\r\n" % hosts), 400, "missing_host")
        assert (await said(url, b"GET /a HTTP/1.0\r\n\r\n"))[0] == 299


@pytest.mark.parametrize("method", [b"BREW", b"GETS", b"VERSION-CONTROL", b"get"])
async def test_a_method_that_nobody_knows_is_not_taken_for_junk(method: bytes, http_server: str) -> None:
    async with serve(inner_app, http_server) as url:
        check(await said(url, b"%b /a HTTP/1.1\r\nhost: x\r\n\r\n" % method), 501, "unknown_method")


async def test_a_bad_chunk_size_is_told_and_reaches_no_engine(http_server: str) -> None:
    async with (
        ScriptedUpstream(GOOD) as engine,
        serve(Proxy(inner_app, FakeDispatcher({"a": engine.url})), http_server) as url,
    ):
        chunked = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        for rest in ([b"zz\r\n"], [b"d\r\n" + BODY + b"\r\n", b"-1\r\n"]):
            check(await said(url, chunked, *rest), 400, "invalid_http")
        assert engine.requests == []


async def test_trailers_of_a_request_are_not_headers(http_server: str) -> None:
    async with (
        ScriptedUpstream(GOOD) as engine,
        serve(Proxy(inner_app, FakeDispatcher({"a": engine.url})), http_server) as url,
    ):
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        body = b"d\r\n" + BODY + b"\r\n0\r\nopenai-organization: late\r\nuser-agent: late\r\n\r\n"
        assert (await said(url, head + body[:20], body[20:]))[0] == 200
        assert (await said(url, head + body))[0] == 200  # the head is looked at after all of it has been parsed
        assert len(engine.requests) == 2
        for request in engine.requests:
            assert request.body == BODY
            assert b"late" not in request.headers.values()


@pytest.mark.parametrize(
    "after", [b"\x00garbage\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]
)
async def test_a_whole_request_is_answered_whatever_follows_it(after: bytes, http_server: str) -> None:
    async with (
        ScriptedUpstream(GOOD) as engine,
        serve(Proxy(inner_app, FakeDispatcher({"a": engine.url})), http_server) as url,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(head() + BODY + after)
        await asyncio.sleep(0.02)
        writer.write(after)
        answers = await asyncio.wait_for(reader.read(), 3.0)  # sooner than an idle connection is closed
        writer.close()
        assert answers.startswith(b"HTTP/1.1 200 ")
        assert answers.count(b"HTTP/1.1 ") == 1
        assert len(engine.requests) == 1


@pytest.mark.parametrize("first", [400, 150, 1])
async def test_a_wish_for_http_2_costs_neither_the_body_nor_the_connection(first: int, http_server: str) -> None:
    async with (
        ScriptedUpstream(GOOD) as engine,
        serve(Proxy(inner_app, FakeDispatcher({"a": engine.url})), http_server) as url,
    ):
        wish = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
        request = head(headers=wish) + BODY
        last = b"GET /next HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(request[:first])
        await asyncio.sleep(0.02)
        writer.write(request[first:] + last)
        answers = await asyncio.wait_for(reader.read(), 5.0)
        writer.close()
        assert answers.startswith(b"HTTP/1.1 200 ")
        assert answers.count(b"HTTP/1.1 299 ") == 1
        assert [got.body for got in engine.requests] == [BODY]
