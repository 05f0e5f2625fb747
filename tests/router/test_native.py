"""HTTP as the router's own server speaks it, byte by byte on real sockets: framing, order, limits, and how it ends."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from evenload.router import fakes
from evenload.router.native import BODY_HIGH_BYTES, PIPELINED_MAX, HttpProtocol

GET = b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n"


class Impatient(HttpProtocol):
    """Gives up soon."""

    head_s = body_idle_s = 0.3
    linger_s = 0.3


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with method, path and body, chunked where the path says so; `/slow` and `/sleepy` take their time."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    if scope["path"] in ("/slow", "/sleepy"):
        await asyncio.sleep(0.05 if scope["path"] == "/slow" else 0.9)
    text = f"{scope['method']} {scope['path']} ".encode() + body
    headers = [] if scope["path"] == "/chunked" else [(b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text[:3], "more_body": True})
    await send({"type": "http.response.body", "body": text[3:]})


class Peer:
    """A client that sends bytes as it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def answer(self) -> tuple[bytes, bytes]:
        """Status line and body of a response with a content-length."""
        head = await self.head()
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head.partition(b"\r\n")[0], await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """All until the server ends the connection."""
        async with asyncio.timeout(10):
            return await self.reader.read()


@contextlib.asynccontextmanager
async def peer(app: Any = echo, server: Any = HttpProtocol, **config: Any) -> AsyncIterator[Peer]:
    async with fakes.serve(app, http=server, **config) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        try:
            yield Peer(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with peer() as p:
        for name in (b"a", b"b?x=1", b"%C3%A4"):
            p.send(GET % name)
            status, body = await p.answer()
            assert status == b"HTTP/1.1 200 OK"
            assert body == b"GET /" + {b"b?x=1": b"b", b"%C3%A4": "ä".encode()}.get(name, name) + b" "


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with peer() as p:
        post = b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
        p.send(GET % b"slow" + post + GET % b"last")
        bodies = [(await p.answer())[1] for _ in range(3)]
        assert bodies == [b"GET /slow ", b"POST /body hello", b"GET /last "]


async def test_a_pipelined_request_whose_body_comes_later_is_served() -> None:
    async with peer() as p:
        p.send(GET % b"slow" + b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe")
        assert (await p.answer())[1] == b"GET /slow "
        await asyncio.sleep(0.02)
        p.send(b"llo")
        assert (await p.answer())[1] == b"POST /body hello"


async def test_a_pipelined_request_whose_body_does_not_come_is_given_up() -> None:
    async with peer(server=Impatient) as p:
        p.send(GET % b"slow" + b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe")
        assert (await p.answer())[1] == b"GET /slow "
        assert (await p.rest()).startswith(b"HTTP/1.1 408 ")


async def test_more_pipelined_requests_than_are_read_ahead_are_all_answered_in_order() -> None:
    count = 20 * PIPELINED_MAX
    async with peer() as p:
        for number in range(count):
            p.send(GET % (b"slow?%d" % number if number == 0 else b"%d" % number))
            if number < 2 * PIPELINED_MAX:
                await asyncio.sleep(0.001)  # in pieces
        bodies = [(await p.answer())[1] for _ in range(count)]
        assert bodies == [b"GET /slow ", *[b"GET /%d " % number for number in range(1, count)]]


@pytest.mark.parametrize("pipelined", [0, 1, PIPELINED_MAX - 1])
async def test_a_client_that_leaves_is_noticed_whatever_it_has_pipelined(pipelined: int) -> None:
    gone = asyncio.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        del send
        await receive()
        if scope["path"] == "/first":
            assert (await receive())["type"] == "http.disconnect"
            gone.set()

    async with peer(wait) as p:
        p.send(GET % b"first" + GET % b"next" * pipelined)
        await asyncio.sleep(0.05)
        p.writer.transport.abort()
        async with asyncio.timeout(1):
            await gone.wait()


async def test_any_number_of_wishes_for_another_protocol_may_come_in_one_piece() -> None:
    wish = b"GET /%d HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: h2c\r\n\r\n"
    async with peer() as p:
        p.send(b"".join(wish % number for number in range(1500)))
        for number in range(1500):
            assert (await p.answer())[1] == b"GET /%d " % number


async def large(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    size = int(scope["path"][1:])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
    await send({"type": "http.response.body", "body": b"x" * size})


async def test_a_client_that_rests_in_the_middle_of_an_answer_is_not_cut_off_for_what_it_has_sent_ahead() -> None:
    size = 4_000_000

    async def halves(scope: Any, receive: Any, send: Any) -> None:
        del scope
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % (2 * size))]})
        await send({"type": "http.response.body", "body": b"x" * size, "more_body": True})  # waits for the client
        await send({"type": "http.response.body", "body": b"y" * size})

    async with peer(halves, server=Impatient) as p:
        p.writer.transport.pause_reading()  # type: ignore[attr-defined]
        p.send(GET % b"long" + b"GET /nex")
        await asyncio.sleep(1.5)  # several times the patience with half a head
        p.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await p.head()
        assert await p.reader.readexactly(2 * size) == b"x" * size + b"y" * size


class Busy(HttpProtocol):
    """Has others to serve than those who do not read."""

    stall_s = 0.6


@pytest.mark.parametrize("reads", [True, False])
async def test_a_client_that_reads_nothing_of_a_long_answer_does_not_keep_its_place(reads: bool) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        del scope
        await receive()
        left = asyncio.create_task(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            if left.done():
                break
        ended.set_result((await left)["type"])

    async with fakes.serve(endless, http=Busy) as url:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, GET % b"")
        until_s = loop.time() + 2.5
        while loop.time() < until_s:
            if reads:
                await loop.sock_recv(client, 2000)
            await asyncio.sleep(0.02)
        assert ended.done() != reads
        client.close()
        async with asyncio.timeout(2):
            assert await ended == "http.disconnect"


@pytest.mark.parametrize("reads", [True, False])
async def test_a_client_that_reads_slowly_gets_all_and_one_that_does_not_is_cut_off(reads: bool) -> None:
    async with fakes.serve(large, http=Impatient, timeout_keep_alive=0) as url:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        size = 4_000_000  # more than the kernel takes
        await loop.sock_sendall(client, GET % b"%d" % size)
        got = 0
        until_s = loop.time() + 2.5  # several times the patience
        while loop.time() < until_s:
            got += len(await loop.sock_recv(client, 2000)) if reads else 0
            await asyncio.sleep(0.02)
        try:
            while data := await loop.sock_recv(client, 65536):
                got += len(data)
        except ConnectionResetError:
            pass
        client.close()
        assert (got > size) == reads


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


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    """Answer without reading."""
    await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


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


@pytest.mark.parametrize(
    "garbage",
    [
        b"nonsense\r\n\r\n",
        b"GET /half HTTP/1.1\r\nhost : x\r\n\r\n",
        b"POST /half HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n",
    ],
)
async def test_garbage_behind_pipelined_requests_costs_none_of_their_answers(garbage: bytes) -> None:
    async with peer(server=Impatient) as p:
        p.send(GET % b"sleepy" + GET % b"second" + GET % b"third" + garbage)  # longer than any limit of the connection
        answers = await p.rest()
        assert answers.count(b"HTTP/1.1 200 ") == answers.count(b"HTTP/1.1 ") == 3, answers
        assert answers.endswith(b"GET /third ")


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


async def test_an_idle_connection_is_closed_and_a_long_answer_is_not() -> None:
    async def long(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(4):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0.6)
        await send({"type": "http.response.body", "body": b"end"})

    async with peer(long, Impatient, timeout_keep_alive=1) as p:
        p.send(GET % b"")
        assert (await p.rest()).endswith(b"3\r\nend\r\n0\r\n\r\n")


async def test_an_application_is_told_that_its_client_has_left() -> None:
    told: list[str] = []

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            pass
        told.append(message["type"])

    async with peer(wait) as p:
        p.send(GET % b"")
        await asyncio.sleep(0.02)
        p.writer.close()
        async with asyncio.timeout(5):
            while not told:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_body_that_nobody_reads_is_left_in_the_socket() -> None:
    read = asyncio.Event()
    got = 0

    async def late(scope: Any, receive: Any, send: Any) -> None:
        nonlocal got
        await read.wait()
        more = True
        while more:
            message = await receive()
            got += len(message["body"])
            more = message["more_body"]
        await refuse(scope, receive, send)

    size = 64 * 1024 * 1024
    async with fakes.serve(late) as url:
        client = socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])))
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        sent = 0

        async def send() -> None:
            nonlocal sent
            await loop.sock_sendall(client, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size)
            piece = b"x" * 65536
            while sent < size:
                await loop.sock_sendall(client, piece)
                sent += len(piece)

        sending = asyncio.ensure_future(send())
        await asyncio.sleep(0.5)
        assert sent < 24 * 1024 * 1024 + BODY_HIGH_BYTES  # what the kernel buffers of both sides hold
        read.set()
        await sending
        assert (await loop.sock_recv(client, 100)).startswith(b"HTTP/1.1 413 ")
        assert got == size
        client.close()


async def test_when_the_server_leaves_answers_are_finished_and_idle_connections_end_at_once() -> None:
    go = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await go.wait()
        await send({"type": "http.response.body", "body": b"end"})

    class Quiet(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield

    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    config = uvicorn.Config(slow, http=HttpProtocol, lifespan="off", log_level="critical", timeout_graceful_shutdown=5)
    server = Quiet(config)
    task = asyncio.ensure_future(server.serve([listener]))
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    idle = Peer(*await asyncio.open_connection(*address))
    busy = Peer(*await asyncio.open_connection(*address))
    busy.send(GET % b"")
    await busy.reader.readuntil(b"begun")
    server.should_exit = True
    assert await idle.rest() == b""
    assert not task.done()
    go.set()
    assert (await busy.rest()).endswith(b"3\r\nend\r\n0\r\n\r\n")
    await task
    for one in (idle, busy):
        one.writer.close()
