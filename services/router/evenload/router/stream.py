"""A stream of events from an upstream to the client: held until its first content, judged, passed on, and ended.

The head of the response is held back with it. So a 200 whose first event is an error, or that is cut before content, is
a failure that another instance can make good, and the client sees one clean stream. Once the head has been sent nothing
is retried: a stream that breaks is ended by an error event.
"""

from evenload.api.errors import ApiError

from .classify import CONTENT, Verdict, client_status
from .client import Client
from .ending import Ending
from .headers import response_headers
from .limits import Limits
from .patience import Patience
from .relay import Relay
from .request import Failure
from .sse import SseObserver, error_payload
from .upstream import Response
from .watch import Watch

BROKEN_OFF = "The instance failed in the middle of the answer. What came so far is not complete; ask again."


class Stream:
    """One stream.

    Args:
        response: whose head has come.
        observer: fresh.
        client: to answer.
        watch: of the request's task.
        ending: is told how it ends.
        limits: sizes and times.
        instance: where it comes from.
    """

    __slots__ = (
        "_client",
        "_closing",
        "_ending",
        "_instance",
        "_limits",
        "_observer",
        "_response",
        "_unsent",
        "_watch",
    )

    def __init__(
        self,
        response: Response,
        observer: SseObserver,
        client: Client,
        watch: Watch,
        *,
        ending: Ending,
        limits: Limits,
        instance: str,
    ) -> None:
        self._response = response
        self._observer = observer
        self._client = client
        self._watch = watch
        self._ending = ending
        self._limits = limits
        self._instance = instance
        self._unsent = True  # something that the observer has seen has not been written yet
        self._closing = False  # the last part has been written, or waits for the client to read

    async def run(self) -> Failure | None:
        """Pass it on; returns the failure if nothing of it has been.

        Raises:
            UpstreamError: it was cut, or is not HTTP.
        """
        held, ended = await self._hold()
        failure = self._judge_held(held, ended=ended)
        if failure is not None:
            return failure
        headers = response_headers(self._response.headers, with_length=False)
        await self._client.start(self._response.status, headers, self._instance)
        patience = Patience(
            self._observer, self._watch, idle_s=self._limits.idle_s, on_content=self._ending.first_token
        )
        patience.look()
        patience.rest()
        await self._client.write(held)
        self._unsent = False
        if not ended:
            await self._relay(patience)
        await self._end()
        return None

    async def interrupted(self, verdict: Verdict, message: str = BROKEN_OFF, code: str | None = None) -> None:
        """Something ended it after its head had been sent: maybe only what should follow a whole answer.

        Args:
            verdict: what.
            message: for the client, if it has not been told of an error yet.
            code: likewise; None for that of the verdict.
        """
        if self._closing:
            return None
        observer = self._observer
        if not self._unsent and (observer.ended or (observer.error is not None and observer.at_boundary)):
            return await self._end()  # whole, or told already what happened
        self._ending.note(verdict)
        return await self._break_off(message, code)

    async def _break_off(self, message: str = BROKEN_OFF, code: str | None = None) -> None:
        """Tell the client that the answer is not whole: by an event where one fits, else by an unfinished body."""
        observer, ending = self._observer, self._ending
        if not observer.at_boundary:
            return  # the server closes the connection when a response is left unfinished
        ending.note_usage(observer.prompt_tokens, observer.output_tokens)
        error = ApiError(status=502, code=code or ending.cause or ending.kind, message=message)
        self._closing = True
        await self._client.end(observer.broken_off(error, self._client.request_id))

    async def _hold(self) -> tuple[bytes, bool]:
        """Read until there is something to judge. Returns what came, and whether that is all."""
        observer = self._observer
        held: list[bytes] = []
        size = 0
        while size <= self._limits.hold_bytes_max:
            chunk = await self._response.read_chunk()
            if not chunk:
                observer.close()
                return b"".join(held), True
            observer.feed(chunk)
            held.append(chunk)
            size += len(chunk)
            if observer.content_started or observer.error is not None or observer.finished:
                break
        return b"".join(held), False

    def _judge_held(self, held: bytes, *, ended: bool) -> Failure | None:
        observer, error = self._observer, self._observer.error
        if error is not None:
            verdict = error.verdict
            payload = error_payload(held)
            headers = [(b"content-type", b"application/json")]
            if verdict.retriable:
                self._ending.note(verdict)
                return Failure(verdict, self._instance, (error.code or 502) if payload else 0, headers, payload or b"")
            if not self._observer.content_started and (not verdict.said or (verdict.cause == CONTENT and payload)):
                self._ending.note(verdict)
                return Failure(verdict, self._instance, client_status(error.code), headers, payload or b"")
        if ended and error is None and not observer.finished:
            verdict = self._cut()
            self._ending.note(verdict)
            return Failure(verdict, self._instance)
        return None

    async def _relay(self, patience: Patience) -> None:
        observer = self._observer
        if self._client.wire is not None:
            await Relay(self._response, self._client, observer, patience).run()
            return observer.close()
        read, send, feed = self._response.read_chunk, self._client.write, observer.feed
        while True:
            patience.wait()
            chunk = await read()
            if not chunk:
                break
            feed(chunk)
            patience.look()
            patience.rest()
            self._unsent = True
            await send(chunk)
            self._unsent = False
        return observer.close()

    async def _end(self) -> None:
        observer, ending = self._observer, self._ending
        self._watch.unlimit()
        ending.note_usage(observer.prompt_tokens, observer.output_tokens)
        error = observer.error
        if error is not None:  # passed on as it came
            rejected = error.verdict.kind == "rejected"
            ending.note(error.verdict if rejected else Verdict("stream_error", error.verdict.cause))
        elif observer.finished:
            ending.note(Verdict("ok", ""))
        else:
            ending.note(self._cut())
            if not observer.done:
                return await self._break_off()
        self._closing = True
        await self._client.end()
        return None

    def _cut(self) -> Verdict:
        return Verdict("upstream_cut", "no_finish_reason" if self._observer.done else "eof")
