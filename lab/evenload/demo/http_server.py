"""A small HTTP/1.1 server for simulated engines: httptools and an asyncio protocol, no framework.

Six engines that stream on two cores beside a whole Evenload leave no room for a framework's cost per token, and faults
need what frameworks hide: answering nothing, cutting a body, resetting a connection. A handler is a plain synchronous
function that gets an `Exchange` and may answer now, later or never.
"""

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, cast
from urllib.parse import parse_qsl

import httptools

BODY_BYTES_MAX: Final = 32 * 1024 * 1024
PIPELINED_MAX: Final = 16  # requests a client may send ahead on one connection
UNSENT_BYTES_MAX: Final = 8 * 1024 * 1024  # a reader this far behind is dropped

Handler = Callable[["Exchange"], None]
Headers = Sequence[tuple[str, str]]

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Exchange:
    """One request and the answer to it. Writing after the client left does nothing.

    Attributes:
        on_gone: Called once when the client leaves before the answer is complete.
    """

    __slots__ = (
        "_connection",
        "body",
        "done",
        "headers",
        "keep_alive",
        "method",
        "on_gone",
        "path",
        "query",
        "started",
    )

    def __init__(
        self, connection: "Connection", method: str, target: str, headers: dict[str, str], body: bytes
    ) -> None:
        self._connection = connection
        self.method = method
        self.path, _, query = target.partition("?")
        self.query = dict(parse_qsl(query))
        self.headers = headers
        self.body = body
        self.started = self.done = False
        self.keep_alive = True
        self.on_gone: Callable[[], None] | None = None

    def respond(
        self, status: int, body: bytes, content_type: str | None = "application/json", extra: Headers = ()
    ) -> None:
        """Send a whole answer."""
        if self.done:
            return
        head = [("content-length", str(len(body)))]
        if content_type is not None:
            head.append(("content-type", content_type))
        self._connection.write(_head(status, (*head, *extra, ("vary", "Origin"))) + body)
        self._finish()

    def start_stream(self, content_type: str = "text/event-stream; charset=utf-8", extra: Headers = ()) -> None:
        """Send the head of a chunked 200."""
        if self.done:
            return
        self.started = True
        head = (("content-type", content_type), *extra, ("vary", "Origin"), ("transfer-encoding", "chunked"))
        self._connection.write(_head(200, head))

    def send(self, *parts: bytes) -> None:
        """Send parts of a stream, one HTTP chunk each."""
        if not self.done:
            self._connection.write(b"".join([b"%x\r\n%b\r\n" % (len(part), part) for part in parts]))

    def end(self) -> None:
        """End a stream properly."""
        if not self.done:
            self._connection.write(b"0\r\n\r\n")
            self._finish()

    def cut(self, *, reset: bool) -> None:
        """Close the connection in the middle: with a TCP reset, or with an end of file that lacks the last chunk."""
        self.done = True
        self._connection.close(reset=reset)

    def comes_by(self, connection: "Connection") -> bool:
        """Whether this exchange uses the connection."""
        return self._connection is connection

    def _finish(self) -> None:
        self.done = True
        self._connection.finished(self)


class Connection(asyncio.Protocol):
    """One client connection. Requests on it are handled one after the other."""

    def __init__(self, handler: Handler, connections: set["Connection"]) -> None:
        self._handler = handler
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._current: Exchange | None = None
        self._queued: deque[Exchange] = deque()
        self._reset_message()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever answers that nobody listens any more."""
        del exc
        self._connections.discard(self)
        self._transport = None
        self._queued.clear()
        exchange, self._current = self._current, None
        if exchange is not None and not exchange.done:
            exchange.done = True
            if exchange.on_gone is not None:
                exchange.on_gone()

    def eof_received(self) -> bool:
        """A half-closed client counts as gone, as uvicorn sees it."""
        return False

    def data_received(self, data: bytes) -> None:
        """Feed the parser; a client that does not speak HTTP is closed."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.write(_head(400, (("content-length", "0"), ("connection", "close"))))
            self.close(reset=False)

    # -- httptools callbacks

    def on_url(self, url: bytes) -> None:
        """Collect the target; it may come in pieces."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Collect the body up to its bound."""
        self._body_bytes += len(body)
        if self._body_bytes <= BODY_BYTES_MAX:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """A request is whole."""
        method = self._parser.get_method().decode("ascii")
        exchange = Exchange(self, method, self._target.decode("latin-1"), self._headers, b"".join(self._body))
        exchange.keep_alive = self._parser.should_keep_alive()
        too_large = self._body_bytes > BODY_BYTES_MAX
        self._reset_message()
        if self._current is not None:
            if too_large or len(self._queued) >= PIPELINED_MAX:
                self.close(reset=False)
            else:
                self._queued.append(exchange)
        elif too_large:
            exchange.keep_alive = False
            self._current = exchange
            exchange.respond(413, b'{"detail":"Request too large"}')
        else:
            self._start(exchange)

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._current is not None

    # -- what exchanges use

    def write(self, data: bytes) -> None:
        """Send bytes; a client too far behind is dropped so that memory stays bounded."""
        if self._transport is None:
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self.close(reset=True)

    def finished(self, exchange: Exchange) -> None:
        """The answer is complete: go on with the next request, or close."""
        assert exchange is self._current, "answers leave in the order of the requests"
        self._current = None
        if not exchange.keep_alive:
            self.close(reset=False)
        elif self._queued:
            self._start(self._queued.popleft())

    def close(self, *, reset: bool) -> None:
        """Close at once with a reset, or after what was written has left."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        if not reset:
            transport.close()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        self._handler(exchange)

    def _reset_message(self) -> None:
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0


class HttpListener:
    """A listening socket that can be closed with all its connections, and opened again on the same port."""

    def __init__(self, handler: Handler, host: str = "127.0.0.1", port: int = 0) -> None:
        self._handler = handler
        self.host = host
        self.port = port
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()

    @property
    def listening(self) -> bool:
        """Whether connections are accepted."""
        return self._server is not None

    async def open(self) -> None:
        """Listen; port 0 becomes the port the system chose."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._handler, self._connections), self.host, self.port, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Stop listening and close the connections that nobody is being answered on."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self._connections):
            if not connection.busy:
                connection.close(reset=False)

    def close(self, *, reset: bool, spare: Exchange | None = None) -> None:
        """Stop listening and drop every connection; that of `spare` stays for its answer only."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self._connections):
            if spare is not None and spare.comes_by(connection):
                spare.keep_alive = False
            else:
                connection.close(reset=reset)


_date: tuple[int, bytes] = (0, b"")


def _head(status: int, headers: Headers) -> bytes:
    global _date  # noqa: PLW0603 - the date line changes once a second, formatting it per answer is a tenth of the cost
    second = int(time.time())
    if second != _date[0]:
        _date = (second, f"date: {formatdate(second, usegmt=True)}\r\nserver: uvicorn\r\n".encode())
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n".encode() + _date[1] + lines.encode("latin-1") + b"\r\n"
