"""The suite's own engines: they listen on the ports that the proxy under test was told of, and follow one script list.

The scripts are shared by all engines, in order of arrival, because only the proxy knows which engine it asks first. So
"the first attempt fails, the second is good" can be said without knowing where either goes.
"""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

from evenload.router.fake_wire import Script, Step, answer, error, response
from evenload.router.fakes import ScriptedUpstream, Seen

MODEL = "tiny"
SERVED = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
# What the peers ask engines for at start and while they run.
PROBES = (
    "/health",
    "/health_generate",
    "/metrics",
    "/server_info",
    "/get_server_info",
    "/get_model_info",
)

PLAIN_BODY = (
    b'{ "id":"chatcmpl-1", "object": "chat.completion", "created": 1, "model": "tiny",\n  "choices": [{"index": 0,'
    b'  "message": {"role": "assistant", "content": "Gr\\u00fc\xc3\x9fe"}, "finish_reason": "stop"}],\n'
    b'  "usage": {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}, "x_engine": 1.50e1 }\n'
)
PLAIN = [response(200, PLAIN_BODY)]
PLAIN_TEXT = "Grüße"
STREAM = answer("Hel", "lo")
STREAM_TEXT = "Hello"


class Engines:
    """All engines of the suite.

    Args:
        ports: where they listen.

    Attributes:
        each: the engines themselves.
        asked: what the proxy sent for completions and embeddings since the last `script`, on any engine.
        asked_of: on which.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.each = [Engine(self, number, port) for number, port in enumerate(ports)]
        self.asked: list[Seen] = []
        self.asked_of: set[int] = set()
        self._scripts: deque[Script] = deque([PLAIN])
        self._again: tuple[Step, ...] | None = None
        self._connections_used: set[tuple[int, int]] = set()

    async def __aenter__(self) -> Self:
        for engine in self.each:
            await engine.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for engine in self.each:
            await engine.__aexit__()

    @property
    def aborts(self) -> int:
        """How often the proxy left while a script was running."""
        return sum(engine.aborts for engine in self.each)

    @property
    def written_bytes(self) -> int:
        """What was handed to sockets."""
        return sum(engine.written_bytes for engine in self.each)

    def script(self, *scripts: Script) -> None:
        """Say what happens to the next requests, one after the other; the last one repeats."""
        self._scripts = deque(scripts)
        self._again = None
        self._connections_used.clear()
        self.asked = []
        self.asked_of = set()

    def script_on_reuse(self, *steps: Step) -> None:
        """Say what happens to each second request on a connection; the next attempt is on a connection of its own."""
        self._again = steps

    def script_for(self, engine: int, seen: Seen) -> Script:
        """Note a request; returns what is to happen."""
        path = seen.path.decode().partition("?")[0]
        if seen.method != b"POST" or path not in SERVED:
            return [_page(engine, path)]
        self.asked.append(seen)
        self.asked_of.add(engine)
        refusal = _refusal(seen.body)
        if refusal is not None:
            return [refusal]
        connection = (engine, seen.connection)
        if self._again is not None and connection in self._connections_used:
            return self._again
        self._connections_used.add(connection)
        return self._scripts[0] if len(self._scripts) == 1 else self._scripts.popleft()


class Engine(ScriptedUpstream):
    """One engine; can stop listening and come back."""

    def __init__(self, owner: Engines, number: int, port: int) -> None:
        super().__init__(PLAIN, port=port)
        self._engines = owner
        self._number = number

    def script_for(self, seen: Seen) -> Script:
        """Ask all engines' common list."""
        return self._engines.script_for(self._number, seen)

    async def refuse(self) -> None:
        """Refuse connections from now on, and end those that there are."""
        self._server.close()
        for link in tuple(self._links):
            link.drop()
        await asyncio.sleep(0.05)

    async def listen(self) -> None:
        """Accept connections again."""
        await self.__aenter__()


def _page(engine: int, path: str) -> bytes:
    if path == "/v1/models":
        names = (MODEL, f"only-{engine}")
        models = [{"id": name, "object": "model", "created": 1, "owned_by": "scripted"} for name in names]
        return response(200, json.dumps({"object": "list", "data": models}).encode())
    if path in PROBES:
        return response(200, b'{"status": "ok", "model_path": "tiny", "is_generation": true}')
    return error(404, "Not Found")


def _refusal(body: bytes) -> bytes | None:
    """Return an engine's own word on a request that it cannot serve."""
    try:
        request: Any = json.loads(body)
    except ValueError:
        return error(400, "The body is not JSON.")
    except RecursionError:
        return error(400, "The body is nested too deeply.")
    if not isinstance(request, dict):
        return error(400, "The body is no object.")
    if request.get("model") != MODEL:
        return error(404, "The model does not exist.")
    return None
