"""A minimal HTTP/1.1 GET over one kept connection: what polling needs and nothing else.

No redirects, cookies, proxies or pools. Every limit is the caller's (`asyncio.timeout`) or a bound below.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

BODY_BYTES_MAX = 8 * 1024 * 1024
HEAD_BYTES_MAX = 64 * 1024  # of all that is no body: heads, interim answers, trailers, frames of chunks
HEADER_LINES_MAX = 256
_READ_BYTES = 256 * 1024


class Answer(NamedTuple):
    """Status and body."""

    status: int
    body: bytes


class GetError(Exception):
    """No usable answer.

    Attributes:
        cause: `refused` (nothing listens), `unreachable` (the address could not be connected to), `cut` (the connection
            ended too soon), `protocol` (not HTTP) or `too_large` (more than a bound below; the text says which).
    """

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause


@cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()  # reads all certificates of the system: once for all instances


class HttpGetter:
    """GETs from one server, one at a time, over one connection as long as it lasts."""

    def __init__(
        self,
        base_url: str,
        headers: Callable[[], Mapping[str, str]] = dict,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Take the base address, `http(s)://host[:port][/prefix]`; nothing is connected yet.

        Args:
            base_url: of the server.
            headers: more of them, asked for at each request.
            tls: for https, instead of the system's authorities.
        """
        parts = urlsplit(base_url)
        self._host = parts.hostname or ""
        self._tls = (tls or _trust()) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._netloc = parts.netloc
        self._headers = headers
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> Answer:
        """GET `path`, which begins with a slash.

        Raises:
            GetError: there was no usable answer.
        """
        kept = self._streams is not None
        try:
            return await self._exchange(path)
        except GetError as error:
            if not kept or error.cause != "cut":
                raise
        return await self._exchange(path)  # the server had closed the kept connection, which is its right

    def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, path: str) -> Answer:
        complete = False
        try:
            reader, writer = self._streams or await self._connect()
            self._streams = reader, writer
            more = "".join(f"{name}: {value}\r\n" for name, value in self._headers().items())
            head = f"GET {self._prefix}{path} HTTP/1.1\r\nHost: {self._netloc}\r\nAccept: */*\r\n{more}\r\n"
            writer.write(head.encode("latin-1"))
            answer = _Reading()
            while not answer.complete:
                answer.feed(await reader.read(_READ_BYTES))
            complete = answer.keep_alive
            return Answer(answer.status, bytes(answer.body))
        except OSError as error:
            raise GetError("cut", str(error)) from error
        finally:
            if not complete:  # also when the caller's time is up: the rest of the answer must not meet the next one
                self.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        except ConnectionRefusedError as error:
            raise GetError("refused", str(error)) from error
        except OSError as error:
            # Several addresses of one name: refused only if all of them refuse.
            refused = "Multiple exceptions" in str(error) and str(error).count("Errno 111") == str(error).count("Errno")
            raise GetError("refused" if refused else "unreachable", str(error)) from error


class _Reading:
    """An answer on its way in (the callbacks are httptools')."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False
        self.keep_alive = False
        self.status = 0
        self._sized = False
        self._bytes = self._lines = 0
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        if not data:
            if not self.status or self._sized:
                raise GetError("cut", "the connection ended within the answer")
            self.complete = True  # neither length nor chunks: the end of the connection is the end of the body
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise GetError("protocol", str(error) or "the answer is an upgrade") from error
        if len(self.body) > BODY_BYTES_MAX:
            raise GetError("too_large", f"a body of more than {BODY_BYTES_MAX} bytes")
        # The parser takes heads of any length, and a server that never ends one would have our CPU until the timeout.
        if self._lines > HEADER_LINES_MAX:
            raise GetError("too_large", f"more than {HEADER_LINES_MAX} lines of headers")
        self._bytes += len(data)
        if self._bytes - len(self.body) > HEAD_BYTES_MAX + len(self.body):  # chunks of some bytes are framed by as many
            raise GetError("too_large", f"more than {HEAD_BYTES_MAX} bytes of headers")

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 (httptools' signature)
        self._lines += 1
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._sized = True

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.status >= 200:  # an interim answer (1xx) is followed by the real one
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()
