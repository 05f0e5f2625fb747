"""Fakes for tests and demos: an upstream that does anything at byte level, a scripted dispatcher, a real server.

async with ScriptedUpstream([sse(role(), content("Hi"), finish(), DONE)]) as engine:
    dispatcher = FakeDispatcher({"a": engine.url})
    async with serve(Proxy(app, dispatcher)) as url: ...
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import uvicorn

from evenload.schemas.telemetry import OutcomeKind

from .ports import Ask, NoInstance
from .upstream import Upstream

# Scripts.


@dataclass(frozen=True)
class Stall:
    """Do nothing until the peer leaves, or for `seconds`."""

    seconds: float | None = None


@dataclass(frozen=True)
class Gate:
    """Go on when the event is set or the peer leaves."""

    event: asyncio.Event


@dataclass(frozen=True)
class Trickle:
    """Write `data` in pieces of `size` bytes, each in a segment of its own."""

    data: bytes
    size: int = 1


class Cut:
    """End the connection in order (FIN)."""


class Reset:
    """End the connection with RST."""


Step = bytes | Stall | Gate | Trickle | Cut | Reset
Script = Sequence[Step]


def response(status: int, body: bytes, *headers: tuple[str, str], content_type: str = "application/json") -> bytes:
    """Return a whole response with a content-length."""
    lines = [f"HTTP/1.1 {status} Scripted", f"content-type: {content_type}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def error(status: int, message: str, *headers: tuple[str, str], code: object = None) -> bytes:
    """Return an error response in OpenAI's form."""
    body = {"error": {"message": message, "type": "Scripted", "param": None, "code": status if code is None else code}}
    return response(status, json.dumps(body).encode(), *headers)


SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"server: scripted\r\ntransfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """Return one chunk of the chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def frame(value: object) -> bytes:
    """Return one data frame with compact JSON, as engines write it."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def delta(finish_reason: str | None = None, **fields: object) -> bytes:
    """Return a chat frame with the given delta."""
    choice = {"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish_reason}
    return frame({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "tiny", "choices": [choice]})


def role() -> bytes:
    """Return the role-only frame that streams begin with."""
    return delta(role="assistant", content="")


def content(text: str) -> bytes:
    """Return a frame with content."""
    return delta(content=text)


def finish(reason: str = "stop") -> bytes:
    """Return the frame with the finish reason."""
    return delta(finish_reason=reason, content="")


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    """Return the last frame of a stream whose client asked for usage."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return frame({"object": "chat.completion.chunk", "choices": [], "usage": counts})


def error_frame(code: int, message: str) -> bytes:
    """Return an error event as vLLM sends it."""
    return frame({"error": {"message": message, "type": "Scripted", "param": None, "code": code}})


def sse(*frames: bytes, end: bool = True) -> list[Step]:
    """Return the script of a stream, one HTTP chunk per frame."""
    steps: list[Step] = [SSE_HEAD, *(chunk(one) for one in frames)]
    return [*steps, END] if end else steps


def answer(*texts: str) -> list[Step]:
    """Return the script of a usual, whole stream."""
    return sse(role(), *(content(text) for text in texts), finish(), usage(11, len(texts)), DONE)


# The upstream.


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    method: bytes
    path: bytes
    headers: dict[bytes, bytes]
    body: bytes
    connection: int


class ScriptedUpstream:
    """An HTTP server that follows a script per request; the last script repeats.

    Attributes:
        requests: what arrived.
        connections: how many were accepted.
        aborts: how often the peer left while a script was running.
        written_bytes: what the scripts have handed to the sockets.
        port: where it listens.
    """

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[Seen] = []
        self.connections = 0
        self.aborts = 0
        self.written_bytes = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            while await self._serve(reader, writer, number):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the peer left, or the server is being closed
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        seen = await _read_request(reader, number)
        if seen is None:
            return False
        script = self._scripts[min(len(self.requests), len(self._scripts) - 1)]
        self.requests.append(seen)
        left = asyncio.ensure_future(reader.read(1))  # a client that waits for its answer sends nothing
        try:
            for step in script:
                if not await self._step(step, writer, left):
                    return False
        except ConnectionError:
            self.aborts += 1
            return False
        finally:
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
        return True

    async def _step(self, step: Step, writer: asyncio.StreamWriter, left: "asyncio.Future[bytes]") -> bool:
        """Do one step; False ends the connection."""
        if isinstance(step, bytes):
            return await self._write(step, writer, left)
        if isinstance(step, Trickle):
            pieces = [step.data[i : i + step.size] for i in range(0, len(step.data), step.size)]
            for piece in pieces:
                if not await self._write(piece, writer, left):
                    return False
                await asyncio.sleep(0)
            return True
        if isinstance(step, Stall):
            return not await self._left(left, asyncio.sleep(step.seconds if step.seconds is not None else 3600.0))
        if isinstance(step, Gate):
            return not await self._left(left, step.event.wait())
        if isinstance(step, Reset):
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return False

    async def _write(self, data: bytes, writer: asyncio.StreamWriter, left: "asyncio.Future[bytes]") -> bool:
        writer.write(data)
        self.written_bytes += len(data)
        return not await self._left(left, writer.drain())

    async def _left(self, left: "asyncio.Future[bytes]", until: Any) -> bool:
        """Wait for `until`; return True, and count, if the peer left before."""
        waiting = asyncio.ensure_future(until)
        await asyncio.wait({left, waiting}, return_when=asyncio.FIRST_COMPLETED)
        gone = left.done() and not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        self.aborts += gone
        return gone


async def _read_request(reader: asyncio.StreamReader, number: int) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head[:-4].split(b"\r\n")
    method, path, _ = first.split(b" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
    return Seen(method, path, headers, body, number)


# The routing side.


@dataclass
class FakeLease:
    """A lease that remembers how it was finished."""

    instance: str
    upstream: Upstream
    attempt: int
    kind: OutcomeKind | None = None
    end: dict[str, Any] = field(default_factory=dict)
    first_token_ms: float | None = None
    finishes: int = 0

    def first_token(self, ttft_ms: float) -> None:
        """Note the first token."""
        assert self.first_token_ms is None
        self.first_token_ms = ttft_ms

    def finish(self, kind: OutcomeKind, **end: Any) -> None:
        """Note the end."""
        self.finishes += 1
        if self.kind is None:
            self.kind, self.end = kind, end


class FakeDispatcher:
    """Takes instances in the given order, those not yet tried first.

    Args:
        instances: name to base URL.
        models: others are refused with 404; None takes any.

    Attributes:
        leases: all that were given, oldest first.
        learned: arguments of `learn_tokens`.
        asks: arguments of `choose`.
    """

    def __init__(self, instances: dict[str, str], models: Sequence[str] | None = None) -> None:
        self.upstreams = {name: Upstream(url) for name, url in instances.items()}
        self.leases: list[FakeLease] = []
        self.learned: list[tuple[str, int, int]] = []
        self.asks: list[Ask] = []
        self._models = models

    @property
    def in_flight(self) -> int:
        """Leases not yet finished."""
        return sum(lease.kind is None for lease in self.leases)

    @property
    def kinds(self) -> list[OutcomeKind | None]:
        """How each lease was finished."""
        return [lease.kind for lease in self.leases]

    def choose(self, request: Ask, tried: tuple[str, ...], attempt: int) -> FakeLease:
        """Take the first instance not yet tried, else the first."""
        self.asks.append(request)
        if self._models is not None and request.model not in self._models:
            raise NoInstance(404, "model_not_found", f"The model {request.model} is not served here.")
        if not self.upstreams:
            raise NoInstance(503, "no_instance", "No instance is usable; try again later.", 3)
        name = next((name for name in self.upstreams if name not in tried), next(iter(self.upstreams)))
        lease = FakeLease(name, self.upstreams[name], attempt)
        self.leases.append(lease)
        return lease

    def estimate_tokens(self, model: str, prompt_bytes: int) -> int:
        """Four bytes per token."""
        del model
        return prompt_bytes // 4

    def learn_tokens(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """Note it."""
        self.learned.append((model, prompt_bytes, prompt_tokens))

    def models(self) -> list[str]:
        """Names given."""
        return list(self._models or ())

    def close(self) -> None:
        """End idle connections."""
        for upstream in self.upstreams.values():
            upstream.close()


class _Server(uvicorn.Server):
    """uvicorn without its hold on the process's signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


@contextlib.asynccontextmanager
async def serve(app: Any, **config: Any) -> AsyncIterator[str]:
    """Serve an ASGI app with uvicorn in this event loop; yields the base URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Server(
        uvicorn.Config(app, http="httptools", lifespan="off", log_level="critical", access_log=False, **config)
    )
    task = asyncio.create_task(server.serve([listener]))
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn offers no event for it
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await task
        listener.close()
