"""HTTP as the router's own server speaks it, byte by byte on real sockets: framing, refusals, how an answer ends."""

import asyncio
import logging
from typing import Any

import pytest

from tests.router.peer import GET, Impatient, peer, refuse


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with peer() as p:
        for name in (b"a", b"b?x=1", b"%C3%A4"):
            p.send(GET % name)
            status, body = await p.answer()
            assert status == b"HTTP/1.1 200 OK"
            assert body == b"GET /" + {b"b?x=1": b"b", b"%C3%A4": "ä".encode()}.get(name, name) + b" "


async def test_a_chunked_body_is_read_however_it_is_split() -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    request = head + b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nt: 1\r\n\r\n"
    async with peer() as p:
        for at in range(len(request)):
            p.send(request[at : at + 1])
            await asyncio.sleep(0)
        assert (await p.answer())[1] == b"POST / hello"
        p.send(request)
        assert (await p.answer())[1] == b"POST / hello"


async def test_a_body_of_untold_length_is_chunked_and_the_connection_goes_on() -> None:
    async with peer() as p:
        p.send(GET % b"chunked" + GET % b"next")
        assert b"transfer-encoding: chunked" in await p.head()
        assert await p.reader.readuntil(b"0\r\n\r\n") == b"3\r\nGET\r\na\r\n /chunked \r\n0\r\n\r\n"
        assert (await p.answer())[1] == b"GET /next "


async def test_a_client_that_asks_before_it_sends_its_body_is_told_to_go_on() -> None:
    async with peer() as p:
        p.send(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-Continue\r\ncontent-length: 2\r\n\r\n")
        assert await p.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        p.send(b"hi")
        assert (await p.answer())[1] == b"POST / hi"


async def test_a_refusal_reaches_a_client_that_asked_first_and_one_that_sends_on_all_the_same() -> None:
    async with peer(refuse) as p:
        p.send(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert (await p.rest()).startswith(b"HTTP/1.1 413 ")  # and the connection ends
    async with peer(refuse, Impatient) as p:
        p.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 500_000)
        await asyncio.sleep(0.1)
        p.send(b"x" * 500_000)
        rest = await p.rest()
        assert b"connection: close" in rest
        assert rest.endswith(b"\r\n\r\nno")


async def test_http_1_0_gets_a_body_that_ends_with_the_connection() -> None:
    async with peer() as p:
        p.send(b"GET /chunked HTTP/1.0\r\n\r\n")
        rest = await p.rest()
        assert b"transfer-encoding" not in rest
        assert rest.endswith(b"\r\n\r\nGET /chunked ")


async def test_head_gets_no_body_and_the_connection_goes_on() -> None:
    async with peer() as p:
        p.send(b"HEAD /a HTTP/1.1\r\nhost: x\r\n\r\n" + b"HEAD /chunked HTTP/1.1\r\nhost: x\r\n\r\n" + GET % b"b")
        assert b"content-length: 8" in await p.head()
        await p.head()
        assert (await p.answer())[1] == b"GET /b "


async def test_a_client_may_ask_for_the_end_of_the_connection() -> None:
    async with peer() as p:
        p.send(b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        rest = await p.rest()
        assert b"connection: close" in rest
        assert rest.endswith(b"GET /a ")


async def test_a_wish_for_http_2_is_ignored_and_the_body_is_not_lost() -> None:
    wish = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    async with peer() as p:
        for split in (1_000, 130):  # the body in the same read as the head, and after it
            request = b"POST /a HTTP/1.1\r\nhost: x\r\n" + wish + b"content-length: 5\r\n\r\nhello"
            p.send(request[:split])
            await asyncio.sleep(0.02)
            p.send(request[split:])
            assert (await p.answer())[1] == b"POST /a hello"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc", b"400"),
        (b"GET / HTTP/1.1\r\nhost : x\r\n\r\n", b"400"),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"a: " + b"x" * 600_000, b"431"),
        (b"GET /" + b"x" * 600_000, b"414"),
    ],
)
async def test_what_is_no_request_is_refused_and_ends_the_connection(request_bytes: bytes, status: bytes) -> None:
    async with peer(server=Impatient) as p:
        p.send(request_bytes)
        assert (await p.rest()).startswith(b"HTTP/1.1 " + status)


async def test_garbage_behind_a_whole_request_costs_the_connection_and_not_the_answer() -> None:
    async with peer(server=Impatient) as p:
        p.send(GET % b"slow" + b"nonsense\r\n\r\n")
        assert (await p.rest()).endswith(b"\r\n\r\nGET /slow ")
    async with peer(server=Impatient) as p:
        p.send(b"POST /slow HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n")
        assert (await p.rest()).startswith(b"HTTP/1.1 400 ")


async def broken(scope: Any, receive: Any, send: Any) -> None:
    """Fail: before the answer, within it, or by an answer that is not what it promised."""
    path = scope["path"]
    if path == "/before":
        raise ZeroDivisionError
    length = [] if path == "/within" else [(b"content-length", b"5")]
    split = [(b"x", b"a\r\nset-cookie: b")] if path == "/split" else []
    await send({"type": "http.response.start", "status": 200, "headers": length + split})
    await send({"type": "http.response.body", "body": b"too long" if path == "/long" else b"abc", "more_body": True})
    if path == "/within":
        raise ZeroDivisionError
    await send({"type": "http.response.body", "body": b""})


async def test_an_answer_that_is_not_whole_never_looks_whole(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    for path, seen in ((b"before", b"HTTP/1.1 500 "), (b"within", b"HTTP/1.1 200 "), (b"short", b"HTTP/1.1 200 ")):
        async with peer(broken) as p:
            p.send(GET % path)
            rest = await p.rest()  # the connection ends
            assert rest.startswith(seen)
            assert not rest.endswith(b"0\r\n\r\n")
    for path in (b"long", b"split"):
        async with peer(broken) as p:
            p.send(GET % path)
            rest = await p.rest()
            assert b"set-cookie" not in rest
            assert b"too long" not in rest
