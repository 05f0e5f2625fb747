"""uvicorn's HTTP/1.1 protocol with bounds on what a client may send before the application sees it.

uvicorn's parser takes heads of any size and waits for them for ever, and answers what it cannot read with plain text.
Here URL and head have a size, head and body a time, and the answers the API's form: 400, 408, 414 and 431. A request
that arrives in one piece, as most do, costs a few attribute accesses more and no timer.
"""

import asyncio
import re
from binascii import hexlify
from os import urandom
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from evenload.api.errors import ApiError
from evenload.bus.client_logs import limited_logger

from .deadline import ARRIVED_S

HEADER_BYTES_MAX = 64 * 1024
URL_BYTES_MAX = 8 * 1024
HEAD_S = 10.0  # from connecting, or from the first byte, to the end of a head
BODY_IDLE_S = 30.0  # between two pieces of a body
LEAVE_S = 2.0  # the same once the server is leaving: who sends on is served, who does not holds up nobody

NOT_HTTP = ApiError(status=400, code="invalid_http", message="What came is not a request in HTTP/1.1.")
NO_HOST = ApiError(status=400, code="missing_host", message="A request needs exactly one Host header; send it.")
UNKNOWN_METHOD = ApiError(status=501, code="unknown_method", message="The request's method is not known here.")
TOO_SLOW = ApiError(status=408, code="request_timeout", message="The rest of the request did not come; send it anew.")

_REQUEST_LINE = re.compile(rb"[A-Za-z][A-Za-z_-]* [!-~]+ HTTP/1\.\d\r?\n")
_HOP_UPGRADE = frozenset({b"connection", b"upgrade", b"http2-settings"})
_log = limited_logger("uvicorn.error")


class _Refused(Exception):
    """Ends parsing; what the client is told is in the protocol's `_refusal`."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection of a client. Made by uvicorn; `bounded` makes a class with other bounds."""

    header_bytes_max = HEADER_BYTES_MAX
    url_bytes_max = URL_BYTES_MAX
    piece_bytes_max = URL_BYTES_MAX  # a head within a smaller piece is within both
    head_s = HEAD_S
    body_idle_s = BODY_IDLE_S
    leave_s = LEAVE_S

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.logger = _log  # anybody can send nonsense as often as he likes
        self._piece_bytes = self._head_bytes = 0
        self._long_head: object = self  # scope of the request whose head came in more than one piece
        self._refusal = NOT_HTTP
        self._upgrade = False
        self._patience: asyncio.TimerHandle | None = None
        self._deaf = False  # what comes is of no use any more
        self._leaving = False

    @property
    def _in_head(self) -> bool:
        """Whether the head of a request has begun and not ended, or none has come at all."""
        return self.cycle is None or self.cycle.scope is not self.scope

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; a connection on which nothing comes is not kept."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._patience = self.loop.call_later(self.head_s, self._on_patience_over)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._be_patient()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection: at once, or after the answer under way; a body that stays away is not waited for."""
        super().shutdown()
        self._leaving = True
        if not self._in_head and self.cycle.more_body and self._patience is not None:
            self._expect_more()

    def data_received(self, data: bytes) -> None:
        """Parse, and mind what is still to come."""
        if self._deaf:
            return
        self._piece_bytes = len(data)
        self._unset_keepalive_if_required()
        left = data
        try:
            while left:
                left = self._parse(left)
        except (httptools.HttpParserError, _Refused) as error:  # the former is also what a callback below has raised
            if self._refusal is NOT_HTTP:
                self._refusal = meaning(error, data)
            self.send_400_response("")
        cycle = self.cycle
        if self._deaf:
            self._be_patient()
        elif cycle is None or cycle.more_body or cycle.scope is not self.scope:
            self._expect_more()
        elif self._patience is not None:
            self._be_patient()

    def on_message_begin(self) -> None:
        """A request line begins."""
        self._upgrade = False
        HttpToolsProtocol.on_message_begin(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is dropped."""
        if self._in_head:
            HttpToolsProtocol.on_header(self, name, value)

    def on_headers_complete(self) -> None:
        """A head has come; only one that came in large or several pieces is measured."""
        if self._piece_bytes > self.piece_bytes_max or self._long_head is self.scope:
            self._measure()
        if self.parser.get_http_version() == "1.1" and hosts(self.headers) != 1:
            self._refusal = NO_HOST
            raise _Refused
        if self.parser.should_upgrade():
            self._upgrade = True  # what follows is parsed anew, as if nobody had asked for it
        else:
            self.scope[ARRIVED_S] = self.loop.time()  # type: ignore[literal-required]
            HttpToolsProtocol.on_headers_complete(self)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if not self._upgrade:
            HttpToolsProtocol.on_message_complete(self)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words are for people, not for programs
        """Refuse what cannot be parsed or was too much, and close."""
        if self.cycle is not None and not self._in_head and not self.pipeline and not self.cycle.response_started:
            self._give_up()  # what cannot be parsed is the rest of its body
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(refusal(self._refusal))
        elif not self.cycle.more_body:  # an answer to an earlier request is under way, and ends the connection
            self._deaf = True
            self.cycle.keep_alive = False
            return
        self.transport.close()

    def _measure(self) -> None:
        if len(self.url) > self.url_bytes_max:
            self._refusal = url_too_long(self.url_bytes_max)
            raise _Refused
        if sum(len(name) + len(value) + 4 for name, value in self.headers) > self.header_bytes_max:
            self._refusal = headers_too_large(self.header_bytes_max)
            raise _Refused

    def _expect_more(self) -> None:
        """The request is not whole yet."""
        if self.transport.is_closing():
            return
        if not self._in_head:
            self._be_patient()
            patience_s = self.leave_s if self._leaving else self.body_idle_s
            self._patience = self.loop.call_later(patience_s, self._on_patience_over)
            return
        if self._long_head is self.scope:
            self._head_bytes += self._piece_bytes
        else:  # the piece may begin with the end of another request, so it does not count
            self._long_head, self._head_bytes = self.scope, 0
        if self._head_bytes > self.header_bytes_max + self.url_bytes_max:
            long_url = len(self.url) > self.url_bytes_max
            self._refusal = url_too_long(self.url_bytes_max) if long_url else headers_too_large(self.header_bytes_max)
            self.send_400_response("")
        elif self._patience is None:
            self._patience = self.loop.call_later(self.head_s, self._on_patience_over)

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _on_patience_over(self) -> None:
        self._patience = None
        if self.transport.is_closing():
            return
        if self.scope is None or (not self._in_head and self.cycle.response_started):
            self.transport.close()  # nothing has come; or the request was refused and its body still does not end
        else:
            self._refuse_slow()

    def _refuse_slow(self) -> None:
        if not self._in_head:
            self._give_up()
        self._refusal = TOO_SLOW
        self.send_400_response("")

    def _give_up(self) -> None:
        """The rest of the body does not come: the application sees a client that left."""
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self.cycle.response_complete = True

    def _parse(self, data: bytes) -> bytes:
        """Parse; returns what is to be parsed anew: a request that wished for an upgrade, without its wish."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            method = self.parser.get_method()
            if not self._upgrade or method == b"CONNECT":
                raise _Refused from None
            head = without_upgrade(method, self.url, self.parser.get_http_version(), self.headers)
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            return head + data[upgrade.args[0] :]
        return b""


def bounded(protocol: type[asyncio.Protocol], header_bytes_max: int, url_bytes_max: int) -> type[asyncio.Protocol]:
    """Return a protocol, this one or `native`'s, with other bounds, for `uvicorn.Config(http=...)`."""
    bounds = {
        "header_bytes_max": header_bytes_max,
        "url_bytes_max": url_bytes_max,
        "piece_bytes_max": min(header_bytes_max, url_bytes_max),
    }
    return type("Bounded", (protocol,), bounds)


def refusal(error: ApiError) -> bytes:
    """Return the answer to what never became a request; the connection ends with it."""
    request_id = b"req-" + hexlify(urandom(12))
    body = error.body(request_id)
    headers = [*error.headers(body), (b"x-request-id", request_id), (b"connection", b"close")]
    return STATUS_LINE[error.status] + b"".join([b"%b: %b\r\n" % header for header in headers]) + b"\r\n" + body


def without_upgrade(method: bytes, target: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Return the head of a request as if it had not asked for another protocol, as HTTP allows.

    Java's client asks for HTTP/2 by Upgrade. llhttp stops after the head of such a request, so its head is to be parsed
    again without the wish, and what follows after it.
    """
    kept = b"".join([b"%b: %b\r\n" % header for header in headers if header[0] not in _HOP_UPGRADE])
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, version.encode(), kept)


def hosts(headers: list[tuple[bytes, bytes]]) -> int:
    """Return how many Host headers there are."""
    count = 0
    for name, _ in headers:
        if name == b"host":
            count += 1
    return count


def meaning(error: Exception, data: bytes) -> ApiError:
    """Return what to tell a client whose `data` cannot be parsed."""
    unknown = isinstance(error, httptools.HttpParserInvalidMethodError) and _REQUEST_LINE.match(data)
    return UNKNOWN_METHOD if unknown else NOT_HTTP


def url_too_long(limit: int) -> ApiError:
    """Return the refusal of a URL over `limit` bytes."""
    message = f"The URL is over the limit of {limit} bytes; what is long belongs into the body."
    return ApiError(status=414, code="url_too_long", message=message)


def headers_too_large(limit: int) -> ApiError:
    """Return the refusal of a head over `limit` bytes."""
    message = f"The request's headers are over the limit of {limit} bytes in all; send less."
    return ApiError(status=431, code="headers_too_large", message=message)
