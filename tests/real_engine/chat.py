"""Asking for chats, byte by byte: what came, when, and how it ended."""

import asyncio
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from evenload.router.sse_chat import ChatObserver

from .engine import MODEL

CHAT = "/v1/chat/completions"
SILENT_S = 30.0
CONNECTIONS_MAX = 200


@dataclass
class Said:
    """An answer.

    Attributes:
        status: 0 if none came.
        headers: lower-case names.
        body: all that came of it.
        ending: "complete", "cut", "silent" (no byte for long), or "refused".
        first_s: from the request to the first byte of the body, None without one.
        gap_s: the longest time without a byte after the first.
        seconds: all together.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ending: str = "complete"
    first_s: float | None = None
    gap_s: float = 0.0
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """What a client makes of a stream.

        - "whole": every choice has its finish reason, no error;
        - "refused": an error status and no content;
        - "told": content, then an error or a body that the framing shows to be cut;
        - "leaked": an error inside a 200 before any content;
        - "half": content that just ends, as if it were whole;
        - "silent": it neither went on nor ended.
        """
        observer = self.observer
        if self.ending == "silent":
            return "silent"
        if self.status != 200:
            return "refused"
        if observer.finished and observer.error is None:
            return "whole"
        if not observer.content_started and observer.error is not None:
            return "leaked"
        return "told" if observer.error is not None or self.ending == "cut" else "half"

    @property
    def observer(self) -> ChatObserver:
        """What the stream says, as the router reads it."""
        observer = ChatObserver()
        observer.feed(self.body)
        observer.close()
        return observer


def question(text: str = "Hello", *, tokens: int, stream: bool = True, **more: Any) -> dict[str, Any]:
    """Return a request for exactly `tokens` output tokens."""
    messages = [{"role": "user", "content": text}]
    return {
        "model": MODEL,
        "messages": messages,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
        "temperature": 1.0,
        **more,
    }


def client(silent_s: float = SILENT_S) -> httpx.AsyncClient:
    """Return a client that waits so long for a byte, and uses no proxies."""
    limits = httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX)
    return httpx.AsyncClient(timeout=httpx.Timeout(silent_s, pool=None), limits=limits, trust_env=False)


async def ask(asker: httpx.AsyncClient, url: str, body: dict[str, Any], path: str = CHAT) -> Said:
    """Send one request and read all that comes."""
    said, began = Said(), time.monotonic()
    last = began
    try:
        async with asker.stream("POST", url + path, json=body) as response:
            said.status = response.status_code
            said.headers = {name.lower(): value for name, value in response.headers.items()}
            async for piece in response.aiter_raw():
                now = time.monotonic()
                if said.first_s is None:
                    said.first_s = now - began
                else:
                    said.gap_s = max(said.gap_s, now - last)
                last = now
                said.body += piece
    except httpx.TimeoutException:
        said.ending = "silent"
    except httpx.ConnectError:
        said.ending = "refused"
    except httpx.TransportError:
        said.ending = "cut"
    said.seconds = time.monotonic() - began
    return said


async def many(asker: httpx.AsyncClient, url: str, count: int, *, tokens: int, stream: bool = True) -> list[Said]:
    """Ask so many at once."""
    return await asyncio.gather(
        *(ask(asker, url, question(f"Number {n}", tokens=tokens, stream=stream)) for n in range(count))
    )


class Load:
    """Streams at a router, so many at once, one after the other, until left.

    Attributes:
        results: of those that have ended.
    """

    def __init__(self, url: str, streams: int, *, tokens: int) -> None:
        self.results: list[Said] = []
        self._url = url
        self._streams = streams
        self._tokens = tokens
        self._stopping = False
        self._numbers = itertools.count()
        self._asker = client()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._worker()) for _ in range(self._streams)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stopping = True
        try:
            await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await self._asker.aclose()

    @property
    def verdicts(self) -> Counter[str]:
        """How many ended how."""
        return Counter(each.verdict for each in self.results)

    def at(self, instance: str) -> list[Said]:
        """Those that an instance has answered."""
        return [each for each in self.results if each.headers.get("x-evenload-instance") == instance]

    async def _worker(self) -> None:
        while not self._stopping:
            number = next(self._numbers)
            said = await ask(self._asker, self._url, question(f"Load {number}", tokens=self._tokens))
            self.results.append(said)
            if said.verdict != "whole":
                await asyncio.sleep(0.2)  # what fails at once must not become a flood
