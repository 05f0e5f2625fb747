"""The server side of the data plane: an asyncio Protocol on httptools that uvicorn's server runs in place of its own.

uvicorn keeps what it is good at (sockets, lifespan, signals, draining); of a request it takes 130 us, this 40. Speaks
ASGI, so the proxy and FastAPI behind it do not know the difference, with one addition: the scope's
`extensions` offer the `Exchange` itself, which tells when the client leaves and takes parts of the body without a
coroutine for each.

Theory of operation. The parser calls back synchronously from `data_received`; each complete head becomes an `Exchange`
with a task of its own. One exchange answers at a time; those of pipelined requests wait. The socket is read on while
few do: only by reading it is noticed that the client has gone. Deadlines are floats, looked at four times a second by
one timer for all connections.

| what waits                          | for how long                                             |
|-------------------------------------|----------------------------------------------------------|
| a connection between requests       | `timeout_keep_alive` of uvicorn                          |
| a head, also the first one          | `head_s` from its first byte to its end; then 408        |
| a body                              | `body_idle_s` between two pieces, `leave_s` once the     |
|                                     | server is leaving; then 408                              |
| a peer that reads its answer slowly | as long as it reads some of it: in `stall_s` while the   |
|                                     | answer is under way, in `body_idle_s` afterwards         |
| a peer that sends on after the      | `linger_s`, so that it can read the answer before the    |
| answer to an unread body            | connection is reset                                      |
"""

import asyncio
import math
from collections import deque
from typing import Any
from weakref import WeakKeyDictionary

import httptools

from evenload.api.errors import ApiError

from .deadline import ARRIVED_S
from .native_exchange import Exchange, Headers
from .native_scope import address_of, scope_of, unsent_bytes
from .server_protocol import (
    BODY_IDLE_S,
    HEAD_S,
    HEADER_BYTES_MAX,
    LEAVE_S,
    NO_HOST,
    NOT_HTTP,
    TOO_SLOW,
    URL_BYTES_MAX,
    headers_too_large,
    hosts,
    meaning,
    refusal,
    url_too_long,
    without_upgrade,
)

BODY_HIGH_BYTES = 256 * 1024  # of a body that nobody reads; above it the socket is not read
PIPELINED_MAX = 8  # requests that wait for those before them; with more the socket is not read
LOOK_S = 0.25

_looks: "WeakKeyDictionary[Any, asyncio.TimerHandle]" = WeakKeyDictionary()  # per server: its timer


class _Refused(Exception):
    """Ends parsing; what the client is told is in the protocol's `_refusal`."""


class HttpProtocol(asyncio.Protocol):
    """One connection of a client. Arguments are uvicorn's."""

    header_bytes_max = HEADER_BYTES_MAX
    url_bytes_max = URL_BYTES_MAX
    piece_bytes_max = URL_BYTES_MAX  # a head within a smaller piece is within both
    head_s = HEAD_S
    body_idle_s = BODY_IDLE_S
    leave_s = LEAVE_S
    linger_s = 2.0
    stall_s = 120.0

    __slots__ = (
        "_app",
        "_config",
        "_current",
        "_deadline_s",
        "_ends",
        "_first_piece",
        "_head_bytes",
        "_headers",
        "_in_head",
        "_incoming",
        "_leaving",
        "_lingering",
        "_parser",
        "_piece_bytes",
        "_read_s",
        "_reading_paused",
        "_refusal",
        "_unsent",
        "_unstarted",
        "_upgrade",
        "_url",
        "_waiting",
        "_writable",
        "app_state",
        "loop",
        "server_state",
        "transport",
        "write_paused",
    )

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._config = config
        self._app = config.loaded_app
        self.server_state = server_state
        self.app_state = app_state
        self.loop = _loop or asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport | None = None
        self._deadline_s = math.inf
        self._ends: dict[str, Any] = {}  # of the connection, as a scope has them
        self._url = b""
        self._headers: Headers = []
        self._in_head = False
        self._piece_bytes = 0  # of the last read
        self._first_piece = True  # of the head that is being read
        self._head_bytes = 0  # of its further pieces
        self._refusal = NOT_HTTP
        self._upgrade = False
        self._incoming: Exchange | None = None  # its body is not complete
        self._current: Exchange | None = None  # may answer
        self._unstarted: Exchange | None = None  # may answer, once what came has been parsed
        self._waiting: deque[Exchange] = deque()  # pipelined behind it
        self._reading_paused = False
        self._unsent = 0  # bytes, when last looked for
        self._read_s = -math.inf  # when the peer was last seen to read, while it does so slowly
        self._lingering = self._leaving = False
        self.write_paused = False
        self._writable: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<HttpProtocol {self._ends} current={self._current!r} waiting={len(self._waiting)}>"

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        self.transport = transport  # type: ignore[assignment]
        self._ends = {
            "server": address_of(transport.get_extra_info("sockname")),
            "client": address_of(transport.get_extra_info("peername")),
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
        }
        self.server_state.connections.add(self)
        self._deadline_s = self.loop.time() + self.head_s
        if self.server_state not in _looks:
            _looks[self.server_state] = self.loop.call_later(LOOK_S, _look, self.server_state, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it ended
        """Tell whoever reads or writes."""
        self.server_state.connections.discard(self)
        self.transport = None
        self._parser = None  # breaks the reference cycle
        for exchange in (self._current, *self._waiting):
            if exchange is not None:
                exchange.lost()
        self._waiting.clear()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._lingering:
            return
        self._piece_bytes = len(data)
        left = data
        try:
            while left:
                left = self._parse(left)
        except (httptools.HttpParserError, _Refused) as error:  # the former is also what a callback below has raised
            self._refuse(meaning(error, data) if self._refusal is NOT_HTTP else self._refusal)
        else:
            incoming = self._incoming
            if incoming is not None:
                self._expect_body()
                if incoming.unread_bytes > BODY_HIGH_BYTES:
                    self._pause_reading()
            elif self._in_head:
                self._bound_head()
        exchange, self._unstarted = self._unstarted, None
        if exchange is not None and not exchange.complete:
            exchange.start(self._app, self.loop, eagerly=True)

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.write_paused = True
        self._unsent = -1
        if self._current is not None and self._current.source is not None:
            self._current.source.pause()

    def resume_writing(self) -> None:
        """It has caught up, or is gone."""
        self.write_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        if self._current is not None and self._current.source is not None:
            self._current.source.resume()

    # For uvicorn's server.

    def shutdown(self) -> None:
        """End the connection: at once, or after the answer under way; a body that stays away is not waited for."""
        self._leaving = True
        if self._current is None:
            self.end()
            return
        self._current.keep_alive = False
        if self._current is self._incoming and self._deadline_s < math.inf:
            self._expect_body()

    # For exchanges.

    def end(self) -> None:
        """Close the connection; a peer that does not even read what was written is cut off, one that reads is not."""
        if self.transport is not None:
            self._deadline_s = self.loop.time() + self.body_idle_s
            self.transport.close()

    async def writable(self) -> None:
        """Return when the client reads again, or is gone."""
        if self._writable is None or self._writable.done():  # one that was cancelled is done too
            self._writable = self.loop.create_future()
        await self._writable

    def body_taken(self, exchange: Exchange) -> None:
        """The body that came so far has been read."""
        if self._reading_paused and exchange is self._incoming:
            self._resume_reading()

    def answered(self, exchange: Exchange) -> None:
        """An exchange is over: go on with the next request, or end the connection."""
        self.server_state.total_requests += 1
        self._current = None
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._incoming is exchange:
            self._linger()
        elif not exchange.keep_alive or self._leaving:
            self.end()
        elif self._waiting:
            self._current = exchange = self._waiting.popleft()
            if len(self._waiting) < PIPELINED_MAX:
                self._resume_reading()
            if exchange is self._incoming:
                self._expect_body()
            exchange.start(self._app, self.loop)
        else:
            self._resume_reading()
            patience_s = self.head_s if self._in_head else self._config.timeout_keep_alive
            self._deadline_s = self.loop.time() + patience_s

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        """A request line begins."""
        self._url = b""
        self._headers = []
        self._upgrade = False
        self._in_head = self._first_piece = True
        self._head_bytes = 0
        self._deadline_s = self.loop.time() + self.head_s

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is dropped."""
        if self._incoming is None:
            name = name.lower()
            self._headers.append((name, value.lower() if name == b"expect" else value))

    def on_headers_complete(self) -> None:
        """The head is there: serve it."""
        if self._piece_bytes > self.piece_bytes_max or not self._first_piece:
            self._measure()
        parser = self._parser
        version = parser.get_http_version()
        if version == "1.1" and hosts(self._headers) != 1:
            self._refusal = NO_HOST
            raise _Refused
        if parser.should_upgrade():
            self._upgrade = True  # what follows is parsed anew, as if nobody had asked for it
            return
        self._in_head = False
        headers, self._headers = self._headers, []
        method = parser.get_method().decode("ascii")
        scope = scope_of(method, self._url, version, headers)
        scope.update(self._ends)
        scope["state"] = self.app_state.copy()
        self._incoming = exchange = Exchange(
            self,
            scope,
            keep_alive=version != "1.0" and parser.should_keep_alive() and not self._leaving,
            expects=(b"expect", b"100-continue") in headers,
        )
        if self._current is None:
            self._current = self._unstarted = exchange
        else:
            scope[ARRIVED_S] = self.loop.time()
            self._waiting.append(exchange)
            if len(self._waiting) >= PIPELINED_MAX:
                self._pause_reading()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._incoming is not None:
            self._incoming.body_came(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        exchange, self._incoming = self._incoming, None
        if exchange is not None:
            self._deadline_s = math.inf
            exchange.body_ended()

    # The rest.

    def _measure(self) -> None:
        """Refuse a head that is too large; only one that came in large or several pieces is measured."""
        if len(self._url) > self.url_bytes_max:
            self._refusal = url_too_long(self.url_bytes_max)
            raise _Refused
        if sum(len(name) + len(value) + 4 for name, value in self._headers) > self.header_bytes_max:
            self._refusal = headers_too_large(self.header_bytes_max)
            raise _Refused

    def _bound_head(self) -> None:
        """Refuse a head that does not end; its first piece may begin with another request, so it does not count."""
        self._head_bytes += 0 if self._first_piece else self._piece_bytes
        self._first_piece = False
        if self._head_bytes > self.header_bytes_max + self.url_bytes_max:
            long_url = len(self._url) > self.url_bytes_max
            self._refuse(url_too_long(self.url_bytes_max) if long_url else headers_too_large(self.header_bytes_max))

    def _parse(self, data: bytes) -> bytes:
        """Parse; returns what is to be parsed anew: a request that wished for an upgrade, without its wish."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            method = self._parser.get_method()
            if not self._upgrade or method == b"CONNECT":
                raise _Refused from None
            head = without_upgrade(method, self._url, self._parser.get_http_version(), self._headers)
            self._parser = httptools.HttpRequestParser(self)
            return head + data[upgrade.args[0] :]
        return b""

    def _refuse(self, error: ApiError) -> None:
        """Answer what cannot be parsed, and end the connection; after the answers to whole requests before it."""
        if self.transport is None or self._lingering:
            return
        current = self._current
        if current is not None and current is self._incoming and not current.started:
            current.abandon()  # what cannot be parsed is the rest of its body
            self._current = current = None
        if current is None:
            self.transport.write(refusal(error))
            self._linger()
        elif current is self._incoming:
            self.end()
        else:
            self._lingering = True
            self._deadline_s = math.inf
            waiting = self._waiting
            if waiting and waiting[-1] is self._incoming:
                waiting.pop()  # what cannot be parsed is the rest of its body
            (waiting[-1] if waiting else current).keep_alive = False

    def _linger(self) -> None:
        """End our side, and let the peer read before the rest of what it sends makes the kernel reset it."""
        self._lingering = True
        self._incoming = None
        self._resume_reading()
        self._deadline_s = self.loop.time() + self.linger_s
        if self.transport is not None:
            if self.transport.can_write_eof():
                self.transport.write_eof()
            else:
                self.end()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self.transport is not None and not self.transport.is_closing():
            self._reading_paused = True
            self._deadline_s = math.inf
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and self.transport is not None and not self.transport.is_closing():
            self._reading_paused = False
            self._expect_body()
            self.transport.resume_reading()

    def _expect_body(self) -> None:
        self._deadline_s = self.loop.time() + (self.leave_s if self._leaving else self.body_idle_s)

    def look(self, now_s: float) -> None:
        """End the connection if it has waited too long; a whole request has no deadline here."""
        transport = self.transport
        if transport is None:
            return
        if self.write_paused and not self._is_read(transport, now_s, self.stall_s):
            transport.abort()  # lease and place are for others
            return
        if self._deadline_s > now_s:
            return
        self._deadline_s = math.inf
        over = self._current is None or transport.is_closing()
        if over and transport.get_write_buffer_size() and self._is_read(transport, now_s, self.body_idle_s):
            self._deadline_s = now_s + self.body_idle_s
        elif over and (transport.is_closing() or transport.get_write_buffer_size()):
            transport.abort()
        elif self._lingering and self._current is None:
            self.end()
        elif self._current is None:
            if self._in_head:
                self._refuse(TOO_SLOW)
            else:
                self.end()
        elif self._current is self._incoming:
            self._refuse(TOO_SLOW)

    def _is_read(self, transport: asyncio.Transport, now_s: float, patience_s: float) -> bool:
        """Tell whether the peer has read some of what was written for it within this time."""
        unsent = unsent_bytes(transport)
        if unsent != self._unsent:
            self._unsent, self._read_s = unsent, now_s
        return now_s - self._read_s <= patience_s


def _look(server_state: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Look at all connections of a server; again in a second, while there are any."""
    now_s = loop.time()
    for connection in tuple(server_state.connections):
        connection.look(now_s)
    if server_state.connections:
        _looks[server_state] = loop.call_later(LOOK_S, _look, server_state, loop)
    else:
        del _looks[server_state]
