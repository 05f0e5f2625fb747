"""An HTTP server that takes POSTs, and whose every refusal is in the API's form.

aiohttp's without its application: that answers what is no HTTP in plain text and writes a traceback for each. Here it
is a fault of the sender as any other: counted, answered with 400, and one line in the log for all of 10 s.
"""

import asyncio
import gzip
import io
import secrets
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from evenload.api.errors import ApiError
from evenload.api.keys import Refused
from evenload.bus.client_logs import limited_logger

log = limited_logger(__name__)

BODY_S = 30.0  # longest wait for a body; also of one whose chunks break off, which aiohttp waits for

Page = Callable[[web.BaseRequest], Awaitable[web.Response]]

_BROKEN_BODY = ApiError(
    status=400,
    code="undecodable",
    message="The body is not what its Content-Encoding or Transfer-Encoding says.",
)
_LATE_BODY = ApiError(status=408, code="request_timeout", message="The body did not come in time.")
_NO_HTTP = ApiError(status=400, code="invalid_http", message="What came is not HTTP/1.1.")
_OWN_FAULT = ApiError(status=500, code="internal_error", message="A fault of the collector; its log says more.")


class Door(web.Server):
    """Serves pages by path."""

    def __init__(self, pages: Mapping[str, Page], bytes_max: int, counts: Counter[str]) -> None:
        """Take what answers a POST to each path; in the event loop.

        Args:
            pages: by path. They may raise Refused.
            bytes_max: of a body, before and after decompression.
            counts: refusals by code are added to it.
        """
        super().__init__(self._answer, request_factory=self._request)
        self.counts = counts
        self._pages = pages
        self._bytes_max = bytes_max
        self._own_loop = asyncio.get_running_loop()

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        return _Connection(
            self,
            loop=self._own_loop,
            access_log=None,  # type: ignore[arg-type]  # its type does not know that this is none
            auto_decompress=False,  # it takes unknown encodings for none, and logs a traceback of a bad one
        )

    def refusal(self, request: web.BaseRequest, wrong: ApiError) -> web.Response:
        """Count what is wrong, and say it."""
        self.counts[wrong.code] += 1
        body = wrong.body(_request_id(request))
        answer = web.Response(
            status=wrong.status,
            body=body,
            headers={name.decode(): value.decode() for name, value in wrong.headers(body)},
        )
        if wrong in (_BROKEN_BODY, _LATE_BODY, _NO_HTTP):
            answer.force_close()  # nobody knows where it ends
        return answer

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(
            message, payload, protocol, writer, task, self._own_loop, client_max_size=self._bytes_max
        )

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        page = self._pages.get(request.path)
        if page is None:
            wrong = ApiError(status=404, code="not_found", message=f"Not Found: {request.path}")
        elif request.method != "POST":
            message = f"Method Not Allowed: {request.path} takes POST."
            wrong = ApiError(status=405, code="method_not_allowed", message=message)
        else:
            try:
                return await page(request)
            except Refused as refused:
                wrong = refused.error
            except Exception:
                log.exception("%s: a fault of the collector", request.path)
                wrong = _OWN_FAULT
        answer = self.refusal(request, wrong)
        if wrong.status == 405:
            answer.headers["allow"] = "POST"
        return answer


async def body_of(request: web.BaseRequest, bytes_max: int) -> bytes:
    """Read a body, and undo its Content-Encoding.

    Raises:
        Refused: 400, it is not what that says; 408; 413; 415, it says what is not known here.
    """
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in _DECODERS:
        message = "Content-Encoding must be gzip or deflate, or not be there."
        raise Refused(ApiError(status=415, code="unsupported_media_type", message=message))
    if request.headers.get("expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # of the answer nothing is sent yet
    try:
        async with asyncio.timeout(BODY_S):
            raw = await request.read()
        body = _DECODERS[encoding](raw, bytes_max + 1)
    except TimeoutError:
        raise Refused(_LATE_BODY) from None
    except web.HTTPRequestEntityTooLarge:
        raise Refused(_too_large(bytes_max)) from None
    except (OSError, EOFError, zlib.error, web.RequestPayloadError):  # or the sender has gone
        raise Refused(_BROKEN_BODY) from None
    if len(body) > bytes_max:
        raise Refused(_too_large(bytes_max))
    return body


def _gunzip(data: bytes, bytes_max: int) -> bytes:
    return gzip.GzipFile(fileobj=io.BytesIO(data)).read(bytes_max)


def _inflate(data: bytes, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj()
    body = inflater.decompress(data, bytes_max)
    if len(body) < bytes_max and not inflater.eof:
        raise EOFError
    return body


_DECODERS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "": lambda data, _: data,
    "identity": lambda data, _: data,
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _inflate,
}


class _Connection(web.RequestHandler):
    """Of aiohttp's, with other words for what is no HTTP."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP; the rest the server has answered already."""
        super().handle_error(request, status, exc, message)  # which looks whether anything was sent, and logs
        assert isinstance(self._manager, Door)
        return self._manager.refusal(request, _NO_HTTP if status < 500 else _OWN_FAULT)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log: a fault of ours with its traceback, one of the sender without, and seldom."""
        error = kw.get("exc_info")
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            peer = None if self.transport is None else self.transport.get_extra_info("peername")
            text = " ".join(str(getattr(error, "message", error)).split())[:200]
            who = peer[0] if peer else "somebody"
            log.warning("reports: %s sent what is no HTTP: %s", who, text, extra={"cause": "no HTTP"})
        else:
            super().log_exception(*args, **kw)


def _too_large(bytes_max: int) -> ApiError:
    return ApiError(status=413, code="request_too_large", message=f"The body is larger than {bytes_max} bytes.")


def _request_id(request: web.BaseRequest) -> bytes:
    given = request.headers.get("x-request-id", "")
    plain = given.isascii() and given.isprintable() and 0 < len(given) <= 128
    return (given if plain else f"req-{secrets.token_hex(12)}").encode()
