"""What tests of the router's own HTTP server stand on: a client that sends what it is told, and small applications."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from evenload.router import fakes
from evenload.router.native import HttpProtocol

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


async def refuse(scope: Any, receive: Any, send: Any) -> None:
    """Answer without reading."""
    await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


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
