"""Fakes for tests and demos: an upstream that does anything at byte level, a scripted dispatcher, a real server.

    async with ScriptedUpstream(answer("Hello")) as engine:
        dispatcher = FakeDispatcher({"a": engine.url})
        async with serve(Proxy(app, dispatcher)) as url:
            got = await post(url, {"model": "tiny", "stream": True})

The bytes that scripts are made of are in `fake_wire.py`.
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

from .fake_wire import Cut, Gate, Reset, Script, Stall, Step, Trickle
from .ports import Ask, NoInstance
from .upstream import Upstream, UpstreamReset

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
        if isinstance(step, Cut):
            await writer.drain()
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


# The client.


@dataclass(frozen=True)
class Got:
    """A response as the client saw it.

    Attributes:
        status: HTTP status.
        headers: the last of each name.
        body: what came.
        whole: whether the message ended as its framing says.
    """

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    whole: bool

    @property
    def error(self) -> dict[str, Any]:
        """The error object of the body."""
        value: dict[str, Any] = json.loads(self.body)["error"]
        return value


async def post(
    url: str, body: object, *headers: tuple[bytes, bytes], path: str = "/v1/chat/completions", method: str = "POST"
) -> Got:
    """Send a request on a connection of its own and read all of the answer.

    Args:
        url: base URL.
        body: bytes go as they are, other values as JSON.
        headers: added to content-type.
        path: of the endpoint.
        method: POST or GET.
    """
    client = Upstream(url)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await client.request(method, path.encode(), [(b"content-type", b"application/json"), *headers], data)
    chunks: list[bytes] = []
    whole = True
    try:
        while part := await response.read_chunk():
            chunks.append(part)
    except UpstreamReset:
        whole = False
    response.release()
    client.close()
    return Got(response.status, dict(response.headers), b"".join(chunks), whole)
