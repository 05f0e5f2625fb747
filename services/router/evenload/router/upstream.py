"""The client side of the data plane: one `Upstream` per instance, with a keep-alive pool of its own.

A pool per instance means that a dead or slow instance blocks nobody else. The pool is LIFO, so that few connections
stay warm and the rest expire. Timeouts for the first byte and between bytes are the caller's: `watch.py` moves a
deadline by storing a float, where a timeout context round each read would make and cancel a timer per chunk. Only
connecting has a timeout here, because only here is it known that nothing was sent.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from evenload.settings.providers import has_version

from .classify import NOTHING_OWN, Own
from .connection import Connection, Headers
from .shape import Shape
from .sigv4 import with_plain_query
from .upstream_errors import BadResponse, ConnectFailed, UpstreamError, UpstreamReset

__all__ = ["BadResponse", "ConnectFailed", "Response", "Upstream", "UpstreamError", "UpstreamReset"]

STALE_WINDOW_S = 1.0  # a keep-alive race shows within a round trip; a later loss is a crash and must not be repeated
IDLE_SECONDS = 4.0  # below uvicorn's and vLLM's 5 s, so that it is mostly us who close


class Response:
    """A response whose head has arrived. `release()` or `abort()` must be called once done with it.

    Attributes:
        status: final HTTP status.
        headers: (lower-case name, value) in order of arrival.
    """

    __slots__ = ("_connection", "_upstream", "headers", "status")

    def __init__(self, connection: Connection, upstream: "Upstream") -> None:
        self._connection: Connection | None = connection
        self._upstream = upstream
        self.status = connection.status
        self.headers: Headers = connection.headers

    def __repr__(self) -> str:
        return f"<Response {self.status} {self._connection!r}>"

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header by its lower-case name."""
        for key, value in self.headers:  # `next` with a generator takes three times as long
            if key == name:
                return value
        return None

    @property
    def is_read(self) -> bool:
        """Whether the body has been read to its end."""
        return self._connection is None or self._connection.is_read

    async def read_chunk(self) -> bytes:
        """Return the next bytes of the body as they came, b"" at its end.

        Raises:
            UpstreamReset: the connection was lost before the end of the message.
            BadResponse: the rest of the body is not HTTP.
        """
        if self._connection is None:
            return b""
        return await self._connection.read_chunk()

    async def pipe(self, sink: Callable[[bytes], None]) -> None:
        """Call `sink` with the bytes of the body as they come, and return at its end.

        Raises:
            UpstreamReset: the connection was lost before the end of the message.
            BadResponse: the rest of the body is not HTTP.
            Exception: whatever `sink` raised.
        """
        if self._connection is not None:
            await self._connection.pipe(sink)

    def pause(self) -> None:
        """Read nothing more from the upstream for now."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read again."""
        if self._connection is not None:
            self._connection.resume()

    async def read_all(self, limit: int) -> bytes:
        """Return the whole body.

        Args:
            limit: bytes; more raises.

        Raises:
            UpstreamReset: the connection was lost before the end of the message.
            BadResponse: the body is longer than `limit`, or not HTTP.
        """
        chunks: list[bytes] = []
        size = 0
        while chunk := await self.read_chunk():
            size += len(chunk)
            if size > limit:
                raise BadResponse("body_too_large")
            chunks.append(chunk)
        return b"".join(chunks)

    def release(self) -> None:
        """Give the connection back when the message is complete and the peer keeps it alive; else end it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._upstream.put_back(connection)

    def abort(self) -> None:
        """End the connection at once, so that the upstream stops its work."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._upstream.drop(connection)


class Upstream:
    """An HTTP/1.1 client of one origin.

    Args:
        base_url: http or https, with an optional path prefix. A version at its end (`/v1`, `/api/v3`) stands for the
            `/v1` of the requested path, as in the base URLs that OpenAI's clients take.
        connect_timeout_s: of the TCP and TLS handshakes together with the look-up of the name.
        idle_connections_max: more are closed.
        idle_seconds: a connection idle for longer is not used again.
        shape: what requests look like at this instance: credential, names of models, query; None as they came.
        ssl_context: for https; the default verifies certificate and name by the system's authorities.
        provider: its preset, by which its errors are read.

    Attributes:
        shape, provider: as given.
        stale_retries: how often a reused connection turned out to be closed and the request was sent again.

    Raises:
        ValueError: the base URL is not one.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float = 2.0,
        idle_connections_max: int = 256,
        idle_seconds: float = IDLE_SECONDS,
        shape: Shape | None = None,
        ssl_context: ssl.SSLContext | None = None,
        provider: str = "",
    ) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query or url.fragment:
            raise ValueError("base_url: expected http(s)://host[:port][/prefix] without user, query or fragment")
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        prefix = url.path.rstrip("/")
        self._prefix = prefix.encode("ascii")
        self._versioned = has_version(prefix)
        self._origin = f"{url.scheme}://{url.netloc}"
        self.shape = shape
        self._ssl = (ssl_context or ssl.create_default_context()) if url.scheme == "https" else None
        self._fixed = b"host: " + url.netloc.encode("ascii") + b"\r\n"
        self._connect_timeout_s = connect_timeout_s
        self._idle_connections_max = idle_connections_max
        self._idle_seconds = idle_seconds
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._sweep_handle: asyncio.TimerHandle | None = None
        self._closed = False
        self.provider = provider
        self.stale_retries = 0

    def __repr__(self) -> str:
        return f"<Upstream {self._host}:{self._port} idle={len(self._idle)} stale_retries={self.stale_retries}>"

    @property
    def idle_connections(self) -> int:
        """Connections that wait in the pool."""
        return len(self._idle)

    def own(self, model: str, *, listed: bool) -> Own:
        """Return what of a request for a model is not the client's.

        Args:
            model: as the client named it.
            listed: the settings name it so, too.
        """
        shape = self.shape
        if shape is None:
            return NOTHING_OWN
        return Own(shape.has_credential, listed or shape.chooses(model))

    async def request(self, method: str, path: bytes, headers: Headers, body: bytes) -> Response:
        """Send a request and return its response once the head has arrived; 1xx are skipped.

        Args:
            method: GET or POST; HEAD is not supported.
            path: with query, in its encoded form.
            headers: without host, content-length and hop-by-hop headers.
            body: sent as it is.

        Raises:
            ConnectFailed: there is no connection; no live server got anything.
            UpstreamReset: the connection was lost before the head was complete.
            BadResponse: what came is not HTTP.
        """
        if self.shape is not None:
            path, headers, body = self.shape.apply(path, headers, body)
        target = self._target(path)
        if self.shape is not None and self.shape.signer is not None:
            target = with_plain_query(target)
            headers = await self.shape.signer.signed(method, self._origin, target, headers, body)
        head = self._head(method, target, headers, len(body))
        connection = self._take_idle()
        if connection is None:
            return await self._exchange(await self._connect(), head, body)
        sent_at_s = connection.now_s()
        try:
            return await self._exchange(connection, head, body)
        except UpstreamReset as reset:
            if reset.sent_any_response or connection.now_s() - sent_at_s > STALE_WINDOW_S:
                raise
        self.stale_retries += 1
        return await self._exchange(await self._connect(), head, body)

    def put_back(self, connection: Connection) -> None:
        """Keep a connection for the next request if that is possible; else end it. Called by `Response.release`."""
        self._busy.discard(connection)
        if not connection.is_read:
            connection.abort()  # the rest of the body is of no use to anybody, and must not meet the next answer
        elif not connection.is_reusable or self._closed or len(self._idle) >= self._idle_connections_max:
            connection.close()
        else:
            connection.resume()  # a slow client may have had it paused up to the last byte
            connection.idle = True
            connection.idle_since_s = connection.now_s()
            self._idle.append(connection)
            if self._sweep_handle is None:
                self._sweep_handle = asyncio.get_running_loop().call_later(self._idle_seconds, self._sweep)

    def drop(self, connection: Connection) -> None:
        """End a connection in use at once. Called by `Response.abort`."""
        self._busy.discard(connection)
        connection.abort()

    def silent(self, looks: int, looks_unbegun: int) -> list[Connection]:
        """Look at the connections in use; return those that have been silent for long.

        Those that nobody reads at the moment are passed over.

        Args:
            looks: so many looks without a byte are long for an answer that has begun.
            looks_unbegun: and so many for one whose head has not come.
        """
        found = []
        for connection in self._busy:
            if not connection.is_paused:
                connection.silent_looks += 1
                if connection.silent_looks > (looks if connection.head_done else looks_unbegun):
                    found.append(connection)
        return found

    def close(self) -> None:
        """End the idle connections; those in use end when they are released."""
        self._closed = True
        if self._sweep_handle is not None:
            self._sweep_handle.cancel()
            self._sweep_handle = None
        while self._idle:
            self._idle.pop().close()

    def _target(self, path: bytes) -> bytes:
        if self._versioned and path.startswith(b"/v1/"):
            path = path[3:]
        return self._prefix + path

    def _head(self, method: str, target: bytes, headers: Headers, body_bytes: int) -> bytes:
        return b"%b %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n" % (
            method.encode("ascii"),
            target,
            self._fixed,
            _render(headers),
            body_bytes,
        )

    async def _exchange(self, connection: Connection, head: bytes, body: bytes) -> Response:
        self._busy.add(connection)
        connection.send(head, body)
        try:
            await connection.wait_head()
        except BaseException:
            self.drop(connection)
            raise
        return Response(connection, self)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, self._forget),
                    self._host,
                    self._port,
                    ssl=self._ssl,
                    server_hostname=self._host if self._ssl else None,
                )
        except TimeoutError:
            raise ConnectFailed("connect_timeout") from None
        except OSError as error:
            raise ConnectFailed(_connect_cause(error)) from None
        return connection

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since_s > connection.now_s() - self._idle_seconds:
                return connection
            connection.close()
        return None

    def _forget(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest_s = loop.time() - self._idle_seconds
        expired = [connection for connection in self._idle if connection.idle_since_s <= oldest_s]
        self._idle = [connection for connection in self._idle if connection.idle_since_s > oldest_s]
        for connection in expired:
            connection.close()
        self._sweep_handle = loop.call_later(self._idle_seconds, self._sweep) if self._idle else None


def _render(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def _connect_cause(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "dns"
    if isinstance(error, ssl.SSLError):
        return "tls"
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return "refused"  # several addresses, all refused, come as one plain OSError
    return "unreachable"
