"""An engine that costs next to nothing: OpenAI's answers from prepared bytes, on the load generator's own event loop.

Streams send one chunk of the chunked encoding per frame, each in a write of its own, on a fixed schedule with a random
phase per stream: the dearest order for a proxy, which gets each chunk alone.
"""

import asyncio
import random
import re
from dataclasses import dataclass, field

from evenload.router.fake_wire import DONE, END, SSE_HEAD, chunk, finish, frame, response, role, usage

WORD = b"_word_"  # what each content frame carries, and no other; the load generator counts it
_HEAD = {"id": "chatcmpl-7f3a9c5e21b84d06", "object": "chat.completion.chunk", "created": 1764400000, "model": "tiny"}


def _content(number: int) -> bytes:
    delta = {"content": f"{WORD.decode()}{number}"}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    return chunk(frame({**_HEAD, "choices": [choice]}))


CONTENTS = [_content(number) for number in range(100)]  # LiteLLM ends a stream of a hundred equal frames
FIRST = SSE_HEAD + chunk(role())
LAST = chunk(finish()) + chunk(usage(60, 200)) + chunk(DONE) + END
PLAIN = response(
    200,
    b'{"id":"chatcmpl-7f3a9c5e21b84d06","object":"chat.completion","created":1764400000,"model":"tiny","choices":'
    b'[{"index":0,"message":{"role":"assistant","content":"_word_"},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":60,"total_tokens":61,"completion_tokens":1}}',
)
MODELS = response(200, b'{"object":"list","data":[{"id":"tiny","object":"model","owned_by":"bench"}]}')
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream"\s*:\s*true')
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d+)')


@dataclass(slots=True)
class Engine:
    """Two addresses of one engine.

    Attributes:
        interval_s: between the content frames of a stream; `max_tokens` of a request says how many.
        ports: where it listens.
        streams: open now.
    """

    interval_s: float = 0.02
    ports: list[int] = field(default_factory=list)
    streams: int = 0

    async def start(self) -> "list[asyncio.Server]":
        """Listen on two free ports of loopback."""
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(lambda: _Peer(self), "127.0.0.1", 0, backlog=4096) for _ in range(2)]
        self.ports = [server.sockets[0].getsockname()[1] for server in servers]
        return servers


class _Peer(asyncio.Protocol):
    """One connection; one request at a time, as proxies send them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._data = b""
        self._left = 0
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._data = data = self._data + data if self._data else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(data, 0, end)
        if len(data) < end + 4 + (int(length[1]) if length else 0):
            return
        self._data = b""
        if data.startswith(b"GET"):
            self._transport.write(MODELS)
        elif _STREAM.search(data, end) is None:
            self._transport.write(PLAIN)
        else:
            tokens = _TOKENS.search(data, end)
            self._begin(int(tokens[1]) if tokens else 16)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._timer is not None:
            self._timer.cancel()
            self._engine.streams -= 1
            self._timer = None

    def _begin(self, frames: int) -> None:
        self._engine.streams += 1
        self._left = frames
        self._transport.write(FIRST + CONTENTS[0])
        self._next_s = self._loop.time() + random.random() * self._engine.interval_s
        self._timer = self._loop.call_at(self._next_s, self._step)

    def _step(self) -> None:
        self._left -= 1
        if self._left > 0:
            self._transport.write(CONTENTS[self._left % 100])
            self._next_s += self._engine.interval_s
            self._timer = self._loop.call_at(self._next_s, self._step)
        else:
            self._transport.write(LAST)
            self._timer = None
            self._engine.streams -= 1
