"""One attempt: send the request to the leased instance, judge what comes, and pass it on or give it back as a failure.

Nothing is sent to the client before it has been judged, whole (here) or its first content (`stream.py`): what fails
before that another instance can make good.

The lease is finished in one `finally`, whatever happened; what it is finished with is written into the `Ending` on the
way.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from . import leaving
from .classify import CONTENT, Own, Verdict, classify, classify_error, client_status
from .client import Client
from .deadline import CODE as OVER_CODE
from .deadline import MESSAGE as OVER_MESSAGE
from .ending import Ending
from .headers import Headers, response_headers
from .limits import Limits
from .ports import Lease
from .request import Failure, Request
from .stream import Stream
from .upstream import BadResponse, ConnectFailed, Response, UpstreamError
from .watch import Limit, Watch
from .whole_answer import Answer, may_be_object, read_answer

OVER_TIME = Verdict("client_gone", "deadline", None, False)  # the client's own deadline: as if it had left
# Speech and pictures are not held until they are whole.
_PASSED_THROUGH = (b"audio/", b"image/", b"video/", b"application/octet-stream")


class Attempt:
    """One use of one lease.

    Args:
        lease: booked; finished by `run`, exactly once.
        request: to send.
        client: to answer.
        watch: of the request's task.
        limits: sizes and times.
        clock: monotonic, seconds.
    """

    __slots__ = ("_client", "_ending", "_lease", "_limits", "_request", "_response", "_stream", "_watch")

    def __init__(
        self,
        lease: Lease,
        request: Request,
        client: Client,
        watch: Watch,
        *,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._lease = lease
        self._request = request
        self._client = client
        self._watch = watch
        self._limits = limits
        self._ending = Ending(lease, clock, watch.soon)
        self._response: Response | None = None
        self._stream: Stream | None = None

    @property
    def prompt_tokens(self) -> int | None:
        """As the engine counted them, None if it did not say."""
        return self._ending.prompt_tokens

    async def run(self, wait_s: float = 0.0) -> Failure | None:
        """Make the attempt.

        Args:
            wait_s: back-off before sending.

        Returns:
            None when the client has been answered, well or not; a failure when it has been sent nothing.
        """
        try:
            return await self._guarded(wait_s)
        except Exception:
            self._ending.cause = "internal_error"
            raise
        finally:
            self._finish()

    async def _guarded(self, wait_s: float) -> Failure | None:
        try:
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                self._ending.sent_anew()
            return await self._exchange()
        except asyncio.CancelledError:
            limit = self._watch.take_expired()
            if limit is None:
                if not self._ending.cause:
                    self._ending.cause = "client_left" if self._watch.client_left else "cancelled"
                if self._stream is not None and self._client.started and not self._watch.client_left:
                    verdict = Verdict("client_gone", self._ending.cause, None, False)
                    await _end_in_time(self._stream, verdict, leaving.MESSAGE, leaving.CODE)
                raise
            verdict = _timed_out(limit)
        except UpstreamError as error:
            verdict = _verdict_of(error)
        if not self._client.started:
            return self._fail(verdict)
        if self._stream is None:
            self._ending.note(verdict)
        elif verdict is OVER_TIME:
            await _end_in_time(self._stream, verdict, OVER_MESSAGE, OVER_CODE)
        else:
            await self._stream.interrupted(verdict)
        return None

    def _finish(self) -> None:
        self._watch.unlimit()
        try:
            if self._response is not None:
                self._response.release()
        finally:
            self._ending.finish()

    async def _exchange(self) -> Failure | None:
        request = self._request
        if request.stream:
            self._watch.limit(self._limits.first_token_s, "first_token")
        else:
            self._watch.limit(self._limits.answer_s, "answer")
        upstream, renamed = self._lease.upstream, self._client.model_name
        if renamed is not None and upstream.shape is not None:
            renamed.theirs(upstream.shape.name_of(request.model))
        response = await upstream.request("POST", request.path, request.headers, request.body)
        self._response = response
        self._ending.status = response.status
        if not 200 <= response.status < 300:
            return await self._refused(response)
        if (response.header(b"content-encoding") or b"identity").lower() == b"identity":
            content_type = (response.header(b"content-type") or b"").lower()
            if content_type.startswith(b"text/event-stream"):
                return await self._streamed(response)
            if self._request.wants_object or not content_type.startswith(_PASSED_THROUGH):
                return await self._whole(response)
        first = await response.read_chunk()  # what breaks before it another instance can make good
        await self._opaque(response, [first] if first else [])
        return None

    async def _streamed(self, response: Response) -> Failure | None:
        observer = self._request.observer(self._request.choices)
        observer.provider, observer.own = self._lease.upstream.provider, self._own()
        self._stream = Stream(
            response,
            observer,
            self._client,
            self._watch,
            ending=self._ending,
            limits=self._limits,
            instance=self._lease.instance,
        )
        return await self._stream.run()

    async def _refused(self, response: Response) -> Failure:
        self._watch.limit(self._limits.idle_s, "idle")
        body, whole = await _beginning(response, self._limits.error_body_bytes_max)
        provider, own = self._lease.upstream.provider, self._own()
        verdict = classify(response.status, response.headers, body, now_s=time.time(), provider=provider, own=own)
        headers = response_headers(response.headers)
        status = response.status if verdict.cause != CONTENT else client_status(response.status)
        return self._fail(verdict, status, headers, body if whole else b"")

    def _own(self) -> Own:
        return self._lease.upstream.own(self._request.model, listed=self._request.listed)

    async def _whole(self, response: Response) -> Failure | None:
        held: list[bytes] = []
        size = 0
        while size <= self._limits.hold_bytes_max:
            chunk = await response.read_chunk()
            if not chunk:
                return await self._complete(response, b"".join(held))
            if not held and response.is_read:
                return await self._complete(response, chunk)
            self._watch.limit(self._limits.idle_s, "idle")
            held.append(chunk)
            size += len(chunk)
        if self._request.wants_object and not may_be_object(b"".join(held)):
            return self._fail(_NO_OBJECT)
        await self._opaque(response, held)
        return None

    async def _complete(self, response: Response, body: bytes) -> Failure | None:
        self._watch.unlimit()
        answer = read_answer(body)
        if answer is None:
            if self._request.wants_object:
                return self._fail(_NO_OBJECT if body.strip() else _EMPTY)
            answer = Answer()
        self._ending.note(_OK)
        if answer.error:
            provider, own = self._lease.upstream.provider, self._own()
            verdict, code, _ = classify_error(self._request.observer.typed(answer.error), provider=provider, own=own)
            if verdict.retriable:
                return self._fail(verdict, code or 502, response_headers(response.headers), body)
            if verdict.cause == CONTENT or not verdict.said:
                return self._fail(verdict, client_status(code), response_headers(response.headers), body)
            self._ending.note(verdict)
        if answer.usage is not None:
            self._ending.note_usage(answer.usage.prompt, answer.usage.output)
        headers = _headers_of(response)
        await self._client.answer(response.status, headers, body, self._lease.instance)
        return None

    async def _opaque(self, response: Response, held: list[bytes]) -> None:
        """Pass on what is not looked into: long answers, speech, and what somebody compressed unasked."""
        await self._client.start(response.status, _headers_of(response), self._lease.instance)
        if held:
            await self._send(b"".join(held))
        while chunk := await self._read(response):
            await self._send(chunk)
        self._ending.note(_OK)
        await self._client.end()

    async def _read(self, response: Response) -> bytes:
        self._watch.limit(self._limits.idle_s, "idle")
        return await response.read_chunk()

    async def _send(self, data: bytes) -> None:
        self._watch.unlimit()
        await self._client.write(data)

    def _fail(self, verdict: Verdict, status: int = 0, headers: Headers | None = None, body: bytes = b"") -> Failure:
        self._ending.note(verdict)
        return Failure(verdict, self._lease.instance, status, headers or [], body)


_OK = Verdict("ok", "")
# Answers of 2xx that are none. Who gives them is fast, and must not look healthy for it.
_EMPTY = Verdict("http_error", "empty_answer")
_NO_OBJECT = Verdict("http_error", "not_json")


def _headers_of(response: Response) -> Headers:
    return response_headers(response.headers, with_length=response.status != 204)  # RFC 9110, 8.6: there is no body


async def _end_in_time(stream: Stream, verdict: Verdict, message: str, code: str) -> None:
    """Tell the client why its stream ends here; one that does not read is not waited for."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(leaving.TELL_S):
            await stream.interrupted(verdict, message, code)


async def _beginning(response: Response, limit: int) -> tuple[bytes, bool]:
    """Return the body of an error and whether it is whole: over `limit` bytes, or broken off, it is its beginning.

    Status and beginning say enough; a part of a body is not passed on.
    """
    chunks: list[bytes] = []
    size = 0
    try:
        while chunk := await response.read_chunk():
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                return b"".join(chunks), False
    except UpstreamError:
        return b"".join(chunks), False
    return b"".join(chunks), True


def _timed_out(limit: Limit) -> Verdict:
    if limit == "deadline":
        return OVER_TIME
    # Without a stream a long silence may be a long answer: to ask again would generate it twice.
    return Verdict("timeout", limit, None, limit != "answer")


def _verdict_of(error: UpstreamError) -> Verdict:
    if isinstance(error, ConnectFailed):
        return Verdict("connect_error", error.cause)
    if isinstance(error, BadResponse):
        return Verdict("http_error", error.cause)
    return Verdict("upstream_cut", error.cause)
