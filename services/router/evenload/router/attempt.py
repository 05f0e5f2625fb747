"""One attempt: send the request to the leased instance, judge what comes, and pass it on or give it back as a failure.

The head of a response is held back until its first content (or its whole, if short) has been judged. So a 200 whose
first event is an error, or that is cut before content, is a failure that another instance can make good, and the client
sees one clean stream. Once the head has been sent nothing is retried: a stream that breaks is ended by an error event.

The lease is finished in one `finally`, whatever happened; what it is finished with is written into `_end` on the way.
Until something else is known the end is `client_gone`, which blames nobody: that is what a cancellation leaves.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from evenload.api.errors import ApiError
from evenload.schemas.telemetry import OutcomeKind

from .classify import Verdict, classify, classify_error
from .client import Client
from .deadline import CODE as OVER_CODE
from .deadline import MESSAGE as OVER_MESSAGE
from .headers import Headers, response_headers
from .limits import Limits
from .ports import Lease
from .quota import LONG_QUOTA_MS
from .relay import Relay
from .sse import SseObserver, count_of, error_payload
from .sse_chat import ChatObserver
from .upstream import BadResponse, ConnectFailed, Response, UpstreamError
from .watch import Limit, Watch


class Request(msgspec.Struct, frozen=True):
    """What is sent upstream, the same for each attempt.

    Attributes:
        stream: the client wants events.
        choices: how many answers it wants.
        observer: of the events that come.
    """

    path: bytes
    headers: Headers
    body: bytes
    stream: bool
    choices: int = 1
    observer: type[SseObserver] = ChatObserver


class Failure(msgspec.Struct, frozen=True):
    """An attempt that gave the client nothing.

    Attributes:
        verdict: what it means.
        instance: where it happened.
        status: of the upstream's error, 0 if there was none to pass on.
        headers: of it, filtered.
        body: of it.
    """

    verdict: Verdict
    instance: str
    status: int = 0
    headers: Headers = []
    body: bytes = b""


class _End(msgspec.Struct):
    kind: OutcomeKind = "client_gone"
    cause: str = ""
    retry_after_ms: float | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    input_tokens: Any = None
    output_tokens: Any = None
    cache_creation_input_tokens: Any = None
    cache_read_input_tokens: Any = None

    @property
    def prompt(self) -> int | None:
        """All tokens of the prompt; Anthropic counts those of its cache apart."""
        if self.prompt_tokens is not None:
            return count_of(self.prompt_tokens, None)
        new = count_of(self.input_tokens, None)
        created, read = count_of(self.cache_creation_input_tokens, 0), count_of(self.cache_read_input_tokens, 0)
        return None if new is None else new + (created or 0) + (read or 0)

    @property
    def output(self) -> Any:
        """Tokens of the answer."""
        return self.output_tokens if self.completion_tokens is None else self.completion_tokens


class _Answer(msgspec.Struct, gc=False):
    usage: _Usage | None = None
    error: Any = None


BROKEN_OFF = "The instance failed in the middle of the answer. What came so far is not complete; ask again."
OVER_TIME = Verdict("client_gone", "deadline", None, False)  # the client's own deadline: as if it had left
TELL_S = 1.0
# Speech and pictures are not held until they are whole.
_PASSED_THROUGH = (b"audio/", b"image/", b"video/", b"application/octet-stream")

_decode_answer = msgspec.json.Decoder(_Answer).decode


class Attempt:
    """One use of one lease.

    Args:
        lease: booked; finished by `run`, exactly once.
        request: to send.
        client: to answer.
        watch: of the request's task.
        limits: sizes and times.
        clock: monotonic, seconds.

    Attributes:
        prompt_tokens: as the engine counted them, None if it did not say.
    """

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
        self._clock = clock
        self._sent_at_s = clock()
        self._status = 0
        self._end = _End()
        self._ttft_ms: float | None = None
        self._output_tokens = 0
        self._response: Response | None = None
        self._observer: SseObserver | None = None
        self.prompt_tokens: int | None = None

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
            self._end.cause = "internal_error"
            raise
        finally:
            self._finish()

    async def _guarded(self, wait_s: float) -> Failure | None:
        try:
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                self._sent_at_s = self._clock()
            return await self._exchange()
        except asyncio.CancelledError:
            limit = self._watch.take_expired()
            if limit is None:
                if not self._end.cause:
                    self._end.cause = "client_left" if self._watch.client_left else "cancelled"
                raise
            verdict = self._timed_out(limit)
        except UpstreamError as error:
            verdict = _verdict_of(error)
        if not self._client.started:
            return self._fail(verdict)
        self._note(verdict)
        if verdict is OVER_TIME:
            await self._break_off_in_time()
        else:
            await self._break_off()
        return None

    def _finish(self) -> None:
        self._watch.unlimit()
        try:
            if self._response is not None:
                self._response.release()
        finally:
            self._release_lease()

    def _release_lease(self) -> None:
        end = self._end
        self._lease.finish(
            end.kind,
            status=self._status,
            cause=end.cause,
            retry_after_ms=end.retry_after_ms,
            ttft_ms=self._ttft_ms,
            duration_ms=(self._clock() - self._sent_at_s) * 1000.0,
            output_tokens=self._output_tokens,
        )

    async def _exchange(self) -> Failure | None:
        request = self._request
        if request.stream:
            self._watch.limit(self._limits.first_token_s, "first_token")
        else:
            self._watch.limit(self._limits.answer_s, "answer")
        response = await self._lease.upstream.request("POST", request.path, request.headers, request.body)
        self._response = response
        self._status = response.status
        if not 200 <= response.status < 300:
            return await self._refused(response)
        if response.header(b"content-encoding") in (None, b"identity"):
            content_type = response.header(b"content-type") or b""
            if content_type.startswith(b"text/event-stream"):
                return await self._stream(response)
            if not content_type.startswith(_PASSED_THROUGH):
                return await self._whole(response)
        first = await response.read_chunk()  # what breaks before it another instance can make good
        await self._opaque(response, [first] if first else [])
        return None

    # Answers that are not a stream.

    async def _refused(self, response: Response) -> Failure:
        self._watch.limit(self._limits.idle_s, "idle")
        try:
            body = await response.read_all(self._limits.error_body_bytes_max)
        except UpstreamError:
            body = b""  # the status alone says enough; what is left of the body is not passed on
        provider = self._lease.upstream.provider
        verdict = classify(response.status, response.headers, body, now_s=time.time(), provider=provider)
        headers = response_headers(response.headers)
        return self._fail(verdict, response.status if body else 0, headers, body)

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
        await self._opaque(response, held)
        return None

    async def _complete(self, response: Response, body: bytes) -> Failure | None:
        self._watch.unlimit()
        try:
            answer = _decode_answer(body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            answer = _Answer()
        self._note(Verdict("ok", ""))
        if answer.error is not None:
            verdict, code, _ = classify_error(answer.error)
            if verdict.retriable:
                return self._fail(verdict, code or 502, response_headers(response.headers), body)
            self._note(verdict)
        if answer.usage is not None:
            self._note_usage(answer.usage.prompt, answer.usage.output)
        headers = response_headers(response.headers)
        await self._client.answer(response.status, headers, body, self._lease.instance)
        return None

    async def _opaque(self, response: Response, held: list[bytes]) -> None:
        """Pass on what is not looked into: long answers, speech, and what somebody compressed unasked."""
        await self._client.start(response.status, response_headers(response.headers), self._lease.instance)
        if held:
            await self._send(b"".join(held))
        while chunk := await self._read(response):
            await self._send(chunk)
        self._note(Verdict("ok", ""))
        await self._client.end()

    # Streams.

    async def _stream(self, response: Response) -> Failure | None:
        observer = self._observer = self._request.observer(self._request.choices)
        held, ended = await self._hold(response, observer)
        failure = self._judge_held(observer, held, ended=ended)
        if failure is not None:
            return failure
        headers = response_headers(response.headers, with_length=False)
        await self._client.start(response.status, headers, self._lease.instance)
        self._look(observer)
        await self._send(held)
        if not ended:
            await self._relay(response, observer)
        await self._end_stream(observer)
        return None

    async def _hold(self, response: Response, observer: SseObserver) -> tuple[bytes, bool]:
        """Read until there is something to judge. Returns what came, and whether that is all."""
        held: list[bytes] = []
        size = 0
        while size <= self._limits.hold_bytes_max:
            chunk = await response.read_chunk()
            if not chunk:
                observer.close()
                return b"".join(held), True
            observer.feed(chunk)
            held.append(chunk)
            size += len(chunk)
            if observer.content_started or observer.error is not None or observer.finished:
                break
        return b"".join(held), False

    def _judge_held(self, observer: SseObserver, held: bytes, *, ended: bool) -> Failure | None:
        error = observer.error
        if error is not None and error.verdict.retriable:
            payload = error_payload(held)
            headers = [(b"content-type", b"application/json")]
            return self._fail(error.verdict, (error.code or 502) if payload else 0, headers, payload or b"")
        if ended and error is None and not observer.finished:
            return self._fail(_cut(observer))
        return None

    async def _relay(self, response: Response, observer: SseObserver) -> None:
        if self._client.wire is not None:
            first = self._look_again if self._ttft_ms is None else None
            relay = Relay(response, self._client, observer, self._watch, idle_s=self._limits.idle_s, on_content=first)
            await relay.run()
            return observer.close()
        read, send, feed = response.read_chunk, self._client.write, observer.feed
        watch, idle_s = self._watch, self._limits.idle_s
        while True:
            if self._ttft_ms is not None:
                watch.limit(idle_s, "idle")  # until the first content its own limit goes on
            chunk = await read()
            if not chunk:
                break
            feed(chunk)
            if self._ttft_ms is None:
                self._look(observer)
            else:
                watch.unlimit()
            await send(chunk)
        return observer.close()

    def _look_again(self) -> None:
        assert self._observer is not None
        self._look(self._observer)

    def _look(self, observer: SseObserver) -> None:
        if observer.content_started:
            self._watch.unlimit()
            self._ttft_ms = ttft_ms = (self._clock() - self._sent_at_s) * 1000.0
            self._lease.first_token(ttft_ms)

    async def _end_stream(self, observer: SseObserver) -> None:
        self._watch.unlimit()
        self._note_usage(observer.prompt_tokens, observer.output_tokens)
        error = observer.error
        if error is not None:  # passed on as it came
            rejected = error.verdict.kind == "rejected"
            self._note(error.verdict if rejected else Verdict("stream_error", error.verdict.cause))
        elif observer.finished:
            self._note(Verdict("ok", ""))
        else:
            self._note(_cut(observer))
            if not observer.done:
                return await self._break_off()
        await self._client.end()
        return None

    async def _break_off_in_time(self) -> None:
        """Tell the client that its own deadline has passed; one that does not read is not waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_S):
                await self._break_off(OVER_MESSAGE, OVER_CODE)

    async def _break_off(self, message: str = BROKEN_OFF, code: str | None = None) -> None:
        """Tell the client that the answer is not whole: by an event where one fits, else by an unfinished body."""
        observer = self._observer
        if observer is None or not observer.at_boundary:
            return  # the server closes the connection when a response is left unfinished
        self._note_usage(observer.prompt_tokens, observer.output_tokens)
        error = ApiError(status=502, code=code or self._end.cause or self._end.kind, message=message)
        await self._client.end(observer.broken_off(error, self._client.request_id))

    # Reading, sending, noting.

    async def _read(self, response: Response) -> bytes:
        self._watch.limit(self._limits.idle_s, "idle")
        return await response.read_chunk()

    async def _send(self, data: bytes) -> None:
        self._watch.unlimit()
        await self._client.write(data)

    def _fail(self, verdict: Verdict, status: int = 0, headers: Headers | None = None, body: bytes = b"") -> Failure:
        self._note(verdict)
        return Failure(verdict, self._lease.instance, status, headers or [], body)

    def _note(self, verdict: Verdict) -> None:
        wait_ms = verdict.retry_after_ms
        if wait_ms is None and verdict.cause == "provider_quota":
            wait_ms = LONG_QUOTA_MS
        self._end = _End(verdict.kind, verdict.cause, wait_ms)

    def _note_usage(self, prompt_tokens: Any, output_tokens: Any) -> None:
        if isinstance(prompt_tokens, int) and prompt_tokens > 0:
            self.prompt_tokens = prompt_tokens
        if isinstance(output_tokens, int) and output_tokens >= 0:
            self._output_tokens = output_tokens

    def _timed_out(self, limit: Limit) -> Verdict:
        if limit == "deadline":
            return OVER_TIME
        # Without a stream a long silence may be a long answer: to ask again would generate it twice.
        return Verdict("timeout", limit, None, limit != "answer")


def _cut(observer: SseObserver) -> Verdict:
    return Verdict("upstream_cut", "no_finish_reason" if observer.done else "eof")


def _verdict_of(error: UpstreamError) -> Verdict:
    if isinstance(error, ConnectFailed):
        return Verdict("connect_error", error.cause)
    if isinstance(error, BadResponse):
        return Verdict("http_error", error.cause)
    return Verdict("upstream_cut", error.cause)
