"""An open-loop load generator for a list of routers: arrivals never wait for answers.

Arrivals go to the routers in turn. When a router refuses the connection, so that nothing was sent, the next one is
tried at once and the failover is counted: it is what a client library or a load balancer before the routers would do.
Nothing else is retried. TTFT counts from the *scheduled* arrival, so a late generator makes results worse, not better,
and how late it was is reported. In-flight requests are bounded as a safety: arrivals beyond the bound are not sent, and
counted.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from evenload.demo.load_client import ChatStream, Outcome, Target
from evenload.demo.openai_request import BYTES_PER_TOKEN
from evenload.demo.workload import Arrival

IN_FLIGHT_MAX: Final = 4000
_FILLER: Final = b"the quick brown fox jumps over a lazy dog and "


@dataclass(frozen=True, slots=True)
class Result:
    """One request as the client saw it.

    Attributes:
        at_s: Scheduled arrival after the start of the run.
        ttft_ms: First content minus scheduled arrival; None if no content came.
        duration_ms: End minus scheduled arrival.
        status: HTTP status; None if no answer came.
        outcome: How it ended.
        router: Base URL that took the request; the last one tried if all refused.
        instance: Who answered, if the router says so.
        tokens: Frames with content.
    """

    at_s: float
    ttft_ms: float | None
    duration_ms: float
    status: int | None
    outcome: Outcome
    router: str
    instance: str | None
    tokens: int

    @property
    def ok(self) -> bool:
        """Whether the client got a whole answer."""
        return self.outcome is Outcome.OK


def percentile(values: Iterable[float], q: float) -> float:
    """Nearest-rank percentile, `q` in 0..100; NaN when there are no values.

    Raises:
        ValueError: `q` is out of range.
    """
    if not 0 <= q <= 100:
        raise ValueError(f"percentile must be in 0..100, got {q}")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q / 100 * len(ordered)) - 1)] if ordered else math.nan


def ttft_percentile_ms(results: Iterable[Result], q: float) -> float:
    """Percentile of TTFT over all requests; those that failed count as infinite: failing must not look fast."""
    return percentile((r.ttft_ms if r.ok and r.ttft_ms is not None else math.inf for r in results), q)


def instance_shares(results: Iterable[Result]) -> dict[str, float]:
    """Share of requests per answering instance, among those that name one."""
    counts = Counter(r.instance for r in results if r.instance is not None)
    total = counts.total()
    return {name: counts[name] / total for name in sorted(counts)}


@dataclass(slots=True)
class LoadGenerator:
    """Sends a workload to routers.

    Attributes:
        routers: Base URLs, used in turn.
        model: Model asked for.
        on_result: Called with each result as it comes.
        in_flight_max: Bound of concurrent requests.
        timeout_s: A request that takes longer is given up.
        failovers: Connections that were refused and went to the next router.
        skipped: Arrivals not sent because of the bound.
        late_ms_max: The worst delay between a scheduled arrival and its sending.
    """

    routers: Sequence[str]
    model: str
    on_result: Callable[[Result], None] | None = None
    in_flight_max: int = IN_FLIGHT_MAX
    timeout_s: float = 120.0
    sent: int = 0
    failovers: int = 0
    skipped: int = 0
    late_ms_max: float = 0.0
    in_flight: int = 0
    results: list[Result] = field(default_factory=list)
    _targets: list[Target] = field(default_factory=list)
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Check the routers.

        Raises:
            ValueError: No router, or a URL that is not http://host:port.
        """
        if not self.routers:
            raise ValueError("at least one router URL is needed")
        self._targets = [Target.of(url) for url in self.routers]

    def stop(self) -> None:
        """Send nothing more; `run` returns when what is in flight has ended."""
        self._stopped.set()

    async def run(self, arrivals: Iterable[Arrival]) -> list[Result]:
        """Send all arrivals at their times, and wait for the last answer.

        Args:
            arrivals: In order of `at_s`, which counts from now.

        Returns:
            Results of this run, in the order in which requests ended.
        """
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        first_result = len(self.results)
        tasks: set[asyncio.Task[None]] = set()
        try:
            for arrival in arrivals:
                await self._wait_until(start_s + arrival.at_s)
                if self._stopped.is_set():
                    break
                self.late_ms_max = max(self.late_ms_max, (loop.time() - start_s - arrival.at_s) * 1000)
                if self.in_flight >= self.in_flight_max:
                    self.skipped += 1
                    continue
                self.in_flight += 1
                self.sent += 1
                tasks.add(task := loop.create_task(self._request(arrival, start_s, self.sent)))
                task.add_done_callback(tasks.discard)
            while tasks:
                await asyncio.wait(tuple(tasks))
        finally:
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self.results[first_result:]

    async def _wait_until(self, due_s: float) -> None:
        delay_s = due_s - asyncio.get_running_loop().time()
        if delay_s <= 0:
            await asyncio.sleep(0)  # a burst must not keep its own requests from starting
        else:
            try:
                async with asyncio.timeout(delay_s):
                    await self._stopped.wait()
            except TimeoutError:
                pass

    async def _request(self, arrival: Arrival, start_s: float, number: int) -> None:
        try:
            result = await self._exchange(arrival, start_s + arrival.at_s, number)
        finally:
            self.in_flight -= 1
        self.results.append(result)
        if self.on_result is not None:
            self.on_result(result)

    async def _exchange(self, arrival: Arrival, due_s: float, number: int) -> Result:
        loop = asyncio.get_running_loop()
        body = chat_body(self.model, arrival, number)
        timed_out = False
        target, stream = await self._connect(body, number)
        if stream is not None:
            try:
                async with asyncio.timeout(self.timeout_s):
                    await stream.finished
            except TimeoutError:
                timed_out = True
            finally:
                stream.close()
        duration_ms = (loop.time() - due_s) * 1000
        if stream is None:
            return Result(arrival.at_s, None, duration_ms, None, Outcome.CONNECT_ERROR, target.url, None, 0)
        return Result(
            at_s=arrival.at_s,
            ttft_ms=None if stream.first_s is None else (stream.first_s - due_s) * 1000,
            duration_ms=duration_ms,
            status=stream.status,
            outcome=Outcome.TIMEOUT if timed_out else stream.outcome,
            router=target.url,
            instance=stream.instance,
            tokens=stream.tokens,
        )

    async def _connect(self, body: bytes, number: int) -> tuple[Target, ChatStream | None]:
        """The first router, from this request's turn on, that accepts the connection."""
        loop = asyncio.get_running_loop()
        count = len(self._targets)
        for attempt in range(count):
            target = self._targets[(number - 1 + attempt) % count]
            request = target.request(body)
            try:
                async with asyncio.timeout(self.timeout_s):
                    _, stream = await loop.create_connection(
                        lambda request=request: ChatStream(loop, request),  # type: ignore[misc]
                        target.host,
                        target.port,
                    )
            except OSError:  # refused or unreachable; TimeoutError is one
                self.failovers += attempt < count - 1
                continue
            return target, stream
        return target, None


def chat_body(model: str, arrival: Arrival, number: int) -> bytes:
    """A chat request with a prompt of the right size, different from others at its beginning.

    Sizes are by the simulated engine's rule, 4 bytes per token; real tokenizers come within some 20 % on this text.
    """
    size = max(1, arrival.prompt_tokens * BYTES_PER_TOKEN)
    text = (b"%d " % number + _FILLER * (size // len(_FILLER) + 1))[:size]
    head = (
        f'{{"model":{json.dumps(model)},"stream":true,"stream_options":{{"include_usage":true}},"ignore_eos":true,'
        f'"max_tokens":{arrival.output_tokens},"messages":[{{"role":"user","content":"'
    )
    return head.encode() + text + b'"}]}'
