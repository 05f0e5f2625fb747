"""Load on one address: closed loops of plain requests, Poisson arrivals, and streams whose frames are counted.

Everything that is not what the engine sent counts as an error: a status, a stream without [DONE], a frame too few.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

from benchmarks.dataplane.engine import WORD
from evenload.router.upstream import Response, Upstream, UpstreamError

PATH = b"/v1/chat/completions"
_TEXT = "Explain how a load balancer can know which engine is busy. " * 4
_HEADERS = [(b"content-type", b"application/json"), (b"authorization", b"Bearer sk-bench")]
LONGEST_S = 60.0
_now_s = time.perf_counter  # uvloop's own clock has whole milliseconds


def body(*, frames: int = 0) -> bytes:
    """A chat request of 300 bytes; `frames` content frames if it is to be streamed."""
    value: dict[str, object] = {"model": "tiny", "messages": [{"role": "user", "content": _TEXT}]}
    if frames:
        value |= {"stream": True, "max_tokens": frames, "stream_options": {"include_usage": True}}
    return json.dumps(value, separators=(",", ":")).encode()


@dataclass(slots=True)
class Seen:
    """What a load saw.

    Attributes:
        done: whole answers.
        errors: by what was wrong.
        latencies_s: of plain requests, from sending to the last byte.
        ttfts_s: of streams, to the first content.
        frames: of content.
        seconds: how long it took.
    """

    done: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)
    frames: int = 0
    seconds: float = 0.0

    def fail(self, what: str) -> None:
        """Count an error."""
        self.errors[what] = self.errors.get(what, 0) + 1


class Load:
    """A client with connections of its own; use it as an async context manager."""

    def __init__(self, url: str) -> None:
        self._client = Upstream(url, idle_connections_max=4096)
        self._plain = body()

    async def __aenter__(self) -> "Load":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.close()

    async def closed(self, clients: int, seconds: float) -> Seen:
        """Each client asks again as soon as it has its answer."""
        seen = Seen()
        start_s = _now_s()

        async def one() -> None:
            while _now_s() - start_s < seconds:
                await self._ask(seen)

        await asyncio.gather(*(one() for _ in range(clients)))
        seen.seconds = _now_s() - start_s
        return seen

    async def arriving(self, rate: float, seconds: float, rng: random.Random) -> Seen:
        """Requests come on a Poisson schedule, answered or not."""
        seen = Seen()
        start_s = at_s = _now_s()
        tasks = []
        while (at_s := at_s + rng.expovariate(rate)) - start_s < seconds:
            await asyncio.sleep(max(0.0, at_s - _now_s()))
            tasks.append(asyncio.ensure_future(self._ask(seen)))
        await asyncio.gather(*tasks)
        seen.seconds = _now_s() - start_s
        return seen

    async def streams(self, count: int, frames: int, spread_s: float) -> Seen:
        """So many streams at once, begun evenly over `spread_s`; returns when all have ended."""
        seen = Seen()
        data = body(frames=frames)
        start_s = _now_s()

        async def one(number: int) -> None:
            await asyncio.sleep(spread_s * number / count)
            await self._stream(data, frames, seen)

        await asyncio.gather(*(one(number) for number in range(count)))
        seen.seconds = _now_s() - start_s
        return seen

    async def _ask(self, seen: Seen) -> None:
        sent_s = _now_s()
        try:
            async with asyncio.timeout(LONGEST_S):
                response = await self._client.request("POST", PATH, _HEADERS, self._plain)
                answer = await _all(response)
        except (UpstreamError, TimeoutError) as error:
            return seen.fail(repr(error))
        if response.status != 200 or WORD not in answer:
            return seen.fail(f"status {response.status}")
        seen.latencies_s.append(_now_s() - sent_s)
        seen.done += 1
        return None

    async def _stream(self, data: bytes, frames: int, seen: Seen) -> None:
        sent_s = _now_s()
        try:
            response = await self._client.request("POST", PATH, _HEADERS, data)
            if response.status != 200:
                response.abort()
                return seen.fail(f"status {response.status}")
            first = await response.read_chunk()
            while WORD not in first and (more := await response.read_chunk()):
                first += more
            seen.ttfts_s.append(_now_s() - sent_s)
            answer = first + await _all(response)
        except UpstreamError as error:
            return seen.fail(repr(error))
        found = answer.count(WORD)
        seen.frames += found
        if found != frames or b"[DONE]" not in answer[-40:]:
            return seen.fail(f"{found} of {frames} frames")
        seen.done += 1
        return None


async def _all(response: Response) -> bytes:
    try:
        return await response.read_all(1 << 24)
    finally:
        response.release()
