"""How long the router's own server waits for a client, what it holds meanwhile, and how it leaves. On real sockets."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest
import uvicorn

from evenload.router import fakes
from evenload.router.native import BODY_HIGH_BYTES, HttpProtocol
from tests.router.peer import GET, Impatient, Peer, peer, refuse


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
