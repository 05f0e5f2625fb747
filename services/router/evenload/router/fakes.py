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
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import uvicorn

from evenload.schemas.telemetry import OutcomeKind

from . import admission
from .beginnings import Beginnings
from .fake_wire import Cut, Gate, Reset, Script, Stall, Step, Trickle
from .limits import Limits
from .native import HttpProtocol
from .ports import Ask, NoInstance
from .server_protocol import BoundedProtocol
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

    Args:
        scripts: what to do, one per request.
        port: where to listen; 0 takes a free one.

    Attributes:
        requests: what arrived.
        connections: how many were accepted.
        aborts: how often the peer left while a script was running.
        written_bytes: what the scripts have handed to the sockets.
        port: where it listens.
    """

    def __init__(self, *scripts: Script, port: int = 0) -> None:
        self._scripts = scripts
        self._links: set[_Link] = set()
        self.requests: list[Seen] = []
        self.connections = 0
        self.aborts = 0
        self.written_bytes = 0
        self.port = port

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Link(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        tasks = [link.task for link in self._links if link.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def opened(self, link: "_Link") -> int:
        """Note a connection; returns its number."""
        self._links.add(link)
        self.connections += 1
        return self.connections

    def closed(self, link: "_Link") -> None:
        """Forget a connection."""
        self._links.discard(link)

    def script_for(self, seen: Seen) -> Script:
        """Note a request; returns what is to happen."""
        script = self._scripts[min(len(self.requests), len(self._scripts) - 1)]
        self.requests.append(seen)
        return script


class _PeerLeft(Exception):
    """The peer ended the connection while a script was running."""


class _Link(asyncio.Protocol):
    """One accepted connection. Not a stream reader: it must notice the peer's leaving without eating its next bytes."""

    def __init__(self, owner: ScriptedUpstream) -> None:
        self._owner = owner
        self._buffer = bytearray()
        self._arrived = asyncio.Event()
        self._lost = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._number = 0
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass
        self._number = self._owner.opened(self)
        self.task = asyncio.get_running_loop().create_task(self._run())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        for event in (self._lost, self._arrived, self._writable):
            event.set()

    def drop(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def _run(self) -> None:
        try:
            while await self._serve_one():
                pass
        except _PeerLeft:
            self._owner.aborts += 1
        finally:
            self._transport.close()
            self._owner.closed(self)

    async def _serve_one(self) -> bool:
        """Serve a request; False ends the connection."""
        while (seen := self._take_request()) is None:
            if self._lost.is_set():
                return False
            self._arrived.clear()
            await self._arrived.wait()
        for step in self._owner.script_for(seen):
            if isinstance(step, Cut):
                return False
            if isinstance(step, Reset):
                self._reset()
                return False
            await self._do(step)
        return True

    async def _do(self, step: Step) -> None:
        if isinstance(step, bytes):
            await self._write(step)
        elif isinstance(step, Trickle):
            for start in range(0, len(step.data), step.size):
                await self._write(step.data[start : start + step.size])
        elif isinstance(step, Gate):
            await self._unless_lost(step.event.wait())
        elif isinstance(step, Stall):
            await self._unless_lost(asyncio.sleep(3600.0 if step.seconds is None else step.seconds))

    async def _write(self, data: bytes) -> None:
        if self._lost.is_set():
            raise _PeerLeft
        self._transport.write(data)
        self._owner.written_bytes += len(data)
        await asyncio.sleep(0)  # on uvloop the end of a turn is when it is written
        await self._writable.wait()
        if self._lost.is_set():
            raise _PeerLeft

    async def _unless_lost(self, until: Coroutine[Any, Any, Any]) -> None:
        tasks = [asyncio.ensure_future(until), asyncio.ensure_future(self._lost.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if self._lost.is_set():
            raise _PeerLeft

    def _reset(self) -> None:
        raw = self._transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _take_request(self) -> Seen | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        if headers.get(b"transfer-encoding") == b"chunked":
            body, size = _dechunk(self._buffer, end + 4)
        else:
            size = end + 4 + int(headers.get(b"content-length", b"0"))
            body = b"" if len(self._buffer) < size else bytes(self._buffer[end + 4 : size])
        if not size or len(self._buffer) < size:
            return None
        del self._buffer[:size]
        method, path, _ = first.split(b" ")
        return Seen(method, path, headers, body, self._number)


def _dechunk(data: bytearray, at: int) -> tuple[bytes, int]:
    """Return a chunked body that begins at `at`, and where it ends; 0 while it is not complete. No trailers."""
    body = bytearray()
    while (line := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line].partition(b";")[0], 16)
        body += data[line + 2 : line + 2 + size]
        at = line + 2 + size + 2
        if size == 0:
            return bytes(body), at
    return b"", 0


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
    expected_ms: float | None = None

    def first_token(self, ttft_ms: float) -> None:
        """Note the first token."""
        assert self.first_token_ms is None
        self.first_token_ms = ttft_ms

    def finish(self, kind: OutcomeKind, **end: Any) -> None:
        """Note the end."""
        self.finishes += 1
        if self.kind is None:
            self.kind, self.end = kind, end


@dataclass
class FakeService:
    """What serves a model: the proxy's own limits, four bytes per token, and a memory."""

    model: str
    learned: list[tuple[str, int, int]]
    gate: admission.Gate | None
    renames: bool
    beginnings: Beginnings | None
    limits: Limits | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """As if the settings had it."""
        return (self.model,)

    def estimate_tokens(self, prompt_bytes: int) -> int:
        """Four bytes per token."""
        return prompt_bytes // 4

    def learn_tokens(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Note it."""
        self.learned.append((self.model, prompt_bytes, prompt_tokens))


class FakeDispatcher:
    """Takes instances in the given order, those not yet tried first.

    Args:
        instances: name to base URL.
        models: others are refused with 404; None takes any.

    Attributes:
        leases: all that were given, oldest first.
        learned: model, and what was learned of it: bytes and tokens.
        asks: arguments of `choose`.
    """

    def __init__(self, instances: dict[str, str], models: Sequence[str] | None = None) -> None:
        self.upstreams = {name: Upstream(url) for name, url in instances.items()}
        self.leases: list[FakeLease] = []
        self.learned: list[tuple[str, int, int]] = []
        self.asks: list[Ask] = []
        self.first_cooled_s: int | None = None
        self.renaming = False
        self.hashing: Beginnings | None = None
        self.expected_ms: float | None = None
        self.pool_gate: admission.Gate | None = None
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
        lease = FakeLease(name, self.upstreams[name], attempt, expected_ms=self.expected_ms)
        self.leases.append(lease)
        return lease

    def may_retry(self, model: str) -> bool:
        """Always."""
        del model
        return True

    def retry_after_s(self, model: str) -> int | None:
        """Say what was set."""
        del model
        return self.first_cooled_s

    def models(self) -> list[str]:
        """Names given."""
        return list(self._models or ())

    def service(self, model: str) -> FakeService:
        """Say what was set."""
        return FakeService(model, self.learned, self.pool_gate, self.renaming, self.hashing)

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
async def serve(app: Any, server: str = "native", *, patient: bool = False, **config: Any) -> AsyncIterator[str]:
    """Serve an ASGI app in this event loop, on the router's own server or on uvicorn's; yields the base URL.

    At the end what is under way is cut off, or if `patient` waited for and told, as a router in production does.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    protocol = HttpProtocol if server == "native" else BoundedProtocol
    options = {"http": protocol, "lifespan": "off", "log_level": "critical", "access_log": False, **config}
    runner = _Server(uvicorn.Config(app, **options))
    task = asyncio.create_task(runner.serve([listener]))
    try:
        while not runner.started:  # noqa: ASYNC110 - uvicorn offers no event for it
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        runner.should_exit = True
        runner.force_exit = not patient
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
        headers: more of them; a content-type instead of JSON's.
        path: of the endpoint.
        method: POST or GET.
    """
    client = Upstream(url)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    json_type = [] if any(name == b"content-type" for name, _ in headers) else [(b"content-type", b"application/json")]
    response = await client.request(method, path.encode(), [*json_type, *headers], data)
    chunks: list[bytes] = []
    whole = True
    try:
        while part := await response.read_chunk():
            chunks.append(part)
    except UpstreamReset:
        whole = False
    finally:
        response.release()
        client.close()
    return Got(response.status, dict(response.headers), b"".join(chunks), whole)
