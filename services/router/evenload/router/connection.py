"""One HTTP/1.1 connection to an upstream: an asyncio Protocol that parses with httptools and hands out bytes.

Theory of operation. The parser calls back synchronously from `data_received`; everything it says is written into plain
attributes, and the one reader (if it waits) is woken through one future. Nothing here creates a task or copies a body
byte: httptools cuts each body piece out of the read buffer, and that very object is handed to the reader.

| state    | `head_done` | `complete` | `error` |
|----------|-------------|------------|---------|
| waiting  | no          | no         | none    |
| body     | yes         | no         | none    |
| complete | yes         | yes        | none    |
| lost     | any         | no         | set     |

Pieces that arrived before a loss are read first; the error is raised after them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools

from .upstream_errors import BadResponse, UpstreamError, UpstreamReset

BUFFER_HIGH_BYTES = 256 * 1024  # above it the socket is not read: back-pressure reaches the upstream
BUFFER_LOW_BYTES = 64 * 1024  # at or below it reading resumes
JOIN_BYTES_MAX = 64 * 1024  # small pieces that wait together are handed out as one
HEAD_BYTES_MAX = 64 * 1024  # status line and headers; a longer head is an attack or a fault

_FRAMING = (b"content-length", b"transfer-encoding")

Headers = list[tuple[bytes, bytes]]


class Connection(asyncio.Protocol):
    """A connection and the response that is being read from it, one at a time.

    Args:
        loop: the running loop.
        on_idle_lost: called when the connection ends while it is idle.

    Attributes:
        now_s: the loop's clock.
    """

    __slots__ = (
        "_buffered",
        "_chunks",
        "_head_bytes",
        "_ignored_head",
        "_loop",
        "_on_idle_lost",
        "_parser",
        "_paused",
        "_sink",
        "_transport",
        "_until_eof",
        "_waiter",
        "complete",
        "error",
        "head_done",
        "headers",
        "idle",
        "idle_since_s",
        "now_s",
        "received_any",
        "reusable",
        "silent_looks",
        "status",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, on_idle_lost: Callable[["Connection"], None]) -> None:
        self._loop = loop
        self.now_s = loop.time
        self._on_idle_lost = on_idle_lost
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._chunks: deque[bytes] = deque()
        self._sink: Callable[[bytes], None] | None = None
        self.error: UpstreamError | None = None
        self.idle = False
        self.idle_since_s = 0.0
        self._paused = False
        self._reset()

    def __repr__(self) -> str:
        state = "lost" if self.error else "idle" if self.idle else "complete" if self.complete else "busy"
        return f"<Connection {state} status={self.status} buffered={self._buffered}>"

    def _reset(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.head_done = False
        self.complete = False
        self.received_any = False
        self.reusable = False
        self.silent_looks = 0  # how often somebody has looked since the last byte: `Upstream.silent`
        self._buffered = 0
        self._head_bytes = 0
        self._ignored_head = False
        self._until_eof = False

    # For the owner.

    @property
    def is_open(self) -> bool:
        """Whether the transport can still be written to."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_read(self) -> bool:
        """Whether the message is complete and nothing of it waits to be read."""
        return self.complete and not self._chunks

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow: the peer keeps the connection, and has been sent the last one whole."""
        return self.reusable and self._transport is not None and self._transport.get_write_buffer_size() == 0

    def send(self, head: bytes, body: bytes) -> None:
        """Start an exchange: forget the last response and write a request."""
        self._reset()
        self.idle = False
        if self._transport is None:
            self._fail(UpstreamReset("closed", sent_any_response=False))
        elif len(body) <= JOIN_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    async def wait_head(self) -> None:
        """Return when the final status and headers are there.

        Raises:
            UpstreamReset: the connection was lost before.
            BadResponse: what came is not HTTP.
        """
        while not self.head_done:
            if self.error is not None:
                raise self.error
            await self._wait()

    async def read_chunk(self) -> bytes:
        """Return the next bytes of the body, b"" at its end.

        Raises:
            UpstreamReset: the connection was lost before the end of the message.
            BadResponse: the rest of the body is not HTTP.
        """
        while not self._chunks:
            if self.complete:
                return b""
            if self.error is not None:
                raise self.error
            await self._wait()
        return self._take()

    async def pipe(self, sink: Callable[[bytes], None]) -> None:
        """Hand the rest of the body to `sink` as it comes, and return at its end; no task wakes in between.

        Raises:
            UpstreamReset: the connection was lost before the end of the message.
            BadResponse: the rest of the body is not HTTP.
            Exception: whatever `sink` raised.
        """
        self.resume()  # what waits here is handed on now; from here on `sink` says when not to read
        while self._chunks:
            sink(self._cut())
        self._sink = sink
        try:
            while not self.complete:
                if self.error is not None:
                    raise self.error
                await self._wait()
        finally:
            self._sink = None

    def pause(self) -> None:
        """Do not read the socket for now."""
        if not self._paused and self.is_open:
            assert self._transport is not None
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read the socket again."""
        if self._paused and self.is_open:
            assert self._transport is not None
            self._paused = False
            self._transport.resume_reading()

    @property
    def is_paused(self) -> bool:
        """Whether the socket is not read, so that its silence says nothing."""
        return self._paused

    def give_up(self, cause: str) -> None:
        """End the connection at once; whoever reads it gets an `UpstreamReset`."""
        self._fail(UpstreamReset(cause, sent_any_response=self.received_any))
        self.abort()

    def close(self) -> None:
        """End the connection in order; of no effect when it has ended."""
        self.reusable = False
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once, so that the upstream stops its work."""
        self.reusable = False
        self._chunks.clear()
        if self._transport is not None:
            self._transport.abort()

    # Waiting and buffering.

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _take(self) -> bytes:
        data = self._cut()
        if self._paused and self._buffered <= BUFFER_LOW_BYTES:
            self.resume()
        return data

    def _cut(self) -> bytes:
        chunks = self._chunks
        if len(chunks) == 1 or self._buffered > JOIN_BYTES_MAX:
            data = chunks.popleft()
            self._buffered -= len(data)
        else:
            data = b"".join(chunks)
            chunks.clear()
            self._buffered = 0
        return data

    def _push(self) -> None:
        sink, self._sink = self._sink, None
        assert sink is not None
        try:
            while self._chunks:
                sink(self._cut())
        except Exception as error:  # the reader's, who waits in `pipe`
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)
        else:
            self._sink = sink

    def _fail(self, error: UpstreamError) -> None:
        if self.error is None:
            self.error = error
        self.reusable = False
        self._wake()

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse what came; note, buffer, wake."""
        if self.idle or self.complete or self.error is not None:
            # Nothing may come between messages: whatever it is, it must never be taken for the next answer.
            self.close()
            return None
        self.received_any = True
        self.silent_looks = 0
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.reusable = False
            if self._sink is not None and self._chunks:
                self._push()
            if not self.complete:  # garbage after a complete message leaves the message sound
                self._fail(BadResponse("unparsable"))
                self.close()
            return self._wake()
        if self._sink is not None:
            if self._chunks:
                self._push()
            return self._wake() if self.complete else None
        if not self.head_done:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._fail(BadResponse("head_too_large"))
                self.close()
            return None
        if self._buffered > BUFFER_HIGH_BYTES and not self.complete:
            self.pause()
        return self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Decide whether the loss ends a message or cuts it."""
        self._transport = None
        self._parser = None  # breaks the reference cycle
        self.reusable = False
        if self.idle:
            self._on_idle_lost(self)
        elif not self.complete:
            if self._until_eof and exc is None and self.error is None:
                self.complete = True
                self._wake()
            else:
                cause = "eof" if exc is None else "reset"
                self._fail(UpstreamReset(cause, sent_any_response=self.received_any))

    # Callbacks of the parser. After `complete` the parser may go on with bytes of a message nobody asked for; these
    # are dropped and the connection is not used again.

    def on_message_begin(self) -> None:
        """A status line begins."""
        if self.complete:
            self.reusable = False
        else:
            self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is dropped."""
        if not self.head_done:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there; heads of 1xx are skipped."""
        if self.complete:
            return
        status: int = self._parser.get_status_code()
        if status < 200:
            self._ignored_head = True
            return
        self.status = status
        self.head_done = True
        self.reusable = self._parser.should_keep_alive()
        self._until_eof = status not in (204, 304)
        for name, _ in self.headers:
            if name in _FRAMING:
                self._until_eof = False

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self.complete:
            self._chunks.append(body)
            self._buffered += len(body)

    def on_message_complete(self) -> None:
        """The message ended as its framing says."""
        if self._ignored_head:
            self._ignored_head = False
        else:
            self.complete = True
