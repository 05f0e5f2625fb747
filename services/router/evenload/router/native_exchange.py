"""One request and its response on a connection of `native.HttpProtocol`: ASGI's `receive` and `send`, and `push`.

The head of a response waits for the first part of the body, so that both are one write; a body whose length nobody told
is chunked. A response that the application leaves unfinished is ended by closing the connection, never in order.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from . import eager
from .wire import EXTENSION, Source

if TYPE_CHECKING:
    from .native import HttpProtocol

log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]
Message = MutableMapping[str, Any]
App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]

_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode("ascii")) for status in HTTPStatus
}
_FRAMING = frozenset({b"content-length", b"connection", b"transfer-encoding"})
_DISCONNECT = {"type": "http.disconnect"}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_UNTOLD = -1  # length of a chunked body
_ENDLESS = -2  # of a body that ends with the connection, for HTTP/1.0


def status_line(status: int) -> bytes:
    """Return the first line of a response."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


class Exchange:
    """See the module docstring.

    Attributes:
        keep_alive: whether the connection may go on afterwards.
        source: who pushes, while somebody does.
        on_gone: called when the client leaves before the response is complete.
        unread_bytes: of the body, waiting for `receive`.
    """

    __slots__ = (
        "_abandoned",
        "_body",
        "_body_whole",
        "_expects",
        "_framed_by_end",
        "_head",
        "_left",
        "_protocol",
        "_scope",
        "_silent",
        "_taken",
        "_task",
        "_waiter",
        "complete",
        "keep_alive",
        "on_gone",
        "source",
        "started",
        "unread_bytes",
    )

    def __init__(
        self, protocol: "HttpProtocol", scope: MutableMapping[str, Any], *, keep_alive: bool, expects: bool
    ) -> None:
        self._protocol = protocol
        self._scope: MutableMapping[str, Any] | None = scope  # until `start`: it knows us too
        scope["extensions"][EXTENSION] = self
        self.keep_alive = keep_alive
        self._expects = expects
        self._silent = scope["method"] == "HEAD"  # the response has no body, whatever the application sends
        self._framed_by_end = scope["http_version"] == "1.0"  # a body whose length nobody told ends the connection
        self._body: list[bytes] = []
        self.unread_bytes = 0
        self._body_whole = self._taken = False
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.started = self.complete = self._abandoned = False
        self._head = b""  # made, and waiting for the first part of the body
        self._left = _UNTOLD  # bytes of the body that are still to come
        self.source: Source | None = None
        self.on_gone: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Exchange started={self.started} complete={self.complete} gone={self.gone}>"

    # For the connection.

    def start(self, app: App, loop: asyncio.AbstractEventLoop, *, eagerly: bool = False) -> None:
        """Run the application in a task, `eagerly` up to its first wait now, if no task is running."""
        scope, self._scope = self._scope, None
        assert scope is not None, "an exchange is started once"
        running = self._run(app, scope)
        self._task = task = eager.start(loop, running) if eagerly else loop.create_task(running)
        if task is not None:
            self._protocol.server_state.tasks.add(task)

    def body_came(self, body: bytes) -> None:
        """Keep a piece of the body; nobody reads it after the response."""
        if not self.complete:
            self._body.append(body)
            self.unread_bytes += len(body)
            self._wake()

    def body_ended(self) -> None:
        """The body is whole."""
        self._body_whole = True
        self._wake()

    def lost(self) -> None:
        """The client is gone."""
        self._wake()
        if self.on_gone is not None and not self.complete:
            self.on_gone()

    def abandon(self) -> None:
        """The rest of the request does not come: the application sees a client that left, and is not listened to."""
        self.complete = self._abandoned = True
        self._wake()

    @property
    def gone(self) -> bool:
        """Whether nobody can be answered any more."""
        return self._protocol.transport is None

    # ASGI.

    async def receive(self) -> Message:
        """Return what has come of the body; after all of it has been returned, wait until the client is gone."""
        while not self._body and not (self._body_whole and not self._taken):
            if self.gone or self.complete:
                return _DISCONNECT
            if self._expects and not self.started and not self._body_whole:
                self._expects = False
                self._write(_CONTINUE)
            self._waiter = self._protocol.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        pieces = self._body
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.unread_bytes = 0
        self._taken = self._body_whole
        self._protocol.body_taken(self)
        return {"type": "http.request", "body": body, "more_body": not self._body_whole}

    async def send(self, message: Message) -> None:
        """Take a part of the response; waits while the client does not read."""
        if self.complete and not self.started:
            return  # abandoned
        if message["type"] == "http.response.body":
            self._part(message.get("body", b""), last=not message.get("more_body", False))
            if self._protocol.write_paused and not self.gone:
                await self._protocol.writable()
        elif message["type"] == "http.response.start" and not self.started:
            self._start(message["status"], message.get("headers", ()))
        else:
            raise RuntimeError(f"{message['type']} is not expected here")

    def whole_body(self) -> bytes | None:
        """Take what `receive` has not returned of the body; None if more is to come."""
        if not self._body_whole:
            return None
        pieces = self._body
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._taken = True
        self.unread_bytes = 0
        self._protocol.body_taken(self)
        return body

    def push(self, data: bytes) -> None:
        """Write a part of the body now; who does it sets `source` and obeys its `pause`."""
        if self._left != _UNTOLD or self._head or self.complete or not self.started:
            return self._part(data, last=False)
        transport = self._protocol.transport
        if transport is not None:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return None

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole response now."""
        self._start(status, headers)
        self._part(body, last=True)

    # The response.

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        lines = [status_line(status)]
        self._silent = self._silent or status in (204, 304)
        told = closes = False
        if not self._body_whole:
            self.keep_alive = False  # what is left of the body is not worth reading
        for header in (*self._protocol.server_state.default_headers, *headers):
            key = header[0].lower()
            if key in _FRAMING:
                if key == b"content-length":
                    self._left, told = int(header[1]), True
                elif key == b"connection":
                    closes = True
                    self.keep_alive = self.keep_alive and header[1].lower() != b"close"
                else:
                    raise RuntimeError("the framing of the body is the server's")
            lines.append(b"%b: %b\r\n" % header)
        if not told and not self._silent:
            if self._framed_by_end:
                self._left, self.keep_alive = _ENDLESS, False
            else:
                lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._head = head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise RuntimeError("a header of the response has a line break")
        self.started = True

    def _part(self, data: bytes, *, last: bool) -> None:
        if not self.started or self.complete:
            raise RuntimeError("a body is not expected here")
        left = self._left
        if self._silent:
            data = self._head
        elif left == _UNTOLD:
            if data:
                data = b"%b%x\r\n%b\r\n%b" % (self._head, len(data), data, b"0\r\n\r\n" if last else b"")
            elif last:
                data = self._head + b"0\r\n\r\n"
            else:
                data = self._head
        elif left == _ENDLESS:
            data = self._head + data
        else:
            if len(data) > left:
                raise RuntimeError("the body is longer than its content-length")
            self._left -= len(data)
            data = self._head + data
        self._head = b""
        if data:
            self._write(data)
        if last:
            self._end()

    def _end(self) -> None:
        self.complete = True
        if self._left > 0 and not self._silent:
            self._protocol.end()  # shorter than promised
        self._wake()
        self._protocol.answered(self)

    def _write(self, data: bytes) -> None:
        transport = self._protocol.transport
        if transport is not None:
            transport.write(data)

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _run(self, app: App, scope: MutableMapping[str, Any]) -> None:
        try:
            await app(scope, self.receive, self.send)
        except Exception:
            if self._abandoned:
                return  # and it noticed
            log.exception("the application failed")
            if not self.started:
                self._fail()
        finally:
            if self._task is not None:
                self._protocol.server_state.tasks.discard(self._task)
            self._task = self.on_gone = None
            if not self.complete:
                self.complete = True
                self._protocol.end()

    def _fail(self) -> None:
        self.keep_alive = False
        self._start(500, ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"21")))
        self._part(b"Internal Server Error", last=True)
