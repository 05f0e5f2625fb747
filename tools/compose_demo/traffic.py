"""Streaming chat requests to one address, each with the name of the router that had it."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from evenload.demo.load import chat_body
from evenload.demo.load_client import ChatStream, Outcome, Target
from evenload.demo.synthetic import sample
from evenload.demo.workload import Arrival
from tools.compose_demo.verdict import Request

ROUTER_HEADER: Final = b"x-evenload-router"
TIMEOUT_S: Final = 120.0
IN_FLIGHT_MAX: Final = 500


class NamedStream(ChatStream):
    """A stream that notes which router the proxy gave the request to."""

    router: str | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note who had it."""
        if name.lower() == ROUTER_HEADER:
            self.router = value.decode("latin-1")
        super().on_header(name, value)


def workload(rate_rps: float, seed: int) -> Iterator[Arrival]:
    """The demo's synthetic conversations, brought to a mean rate, over and over."""
    arrivals = sample(seed=seed)
    stretch = len(arrivals) / rate_rps / arrivals[-1].at_s
    offset_s = 0.0
    while True:
        for arrival in arrivals:
            yield Arrival(offset_s + arrival.at_s * stretch, arrival.prompt_tokens, arrival.output_tokens)
        offset_s += arrivals[-1].at_s * stretch


@dataclass(slots=True)
class Traffic:
    """Sends until told to stop.

    Attributes:
        requests: What has ended so far.
        skipped: Arrivals not sent because too many were in flight.
    """

    url: str
    model: str
    rate_rps: float
    seed: int
    requests: list[Request] = field(default_factory=list)
    skipped: int = 0
    _start_s: float = 0.0
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def now_s(self) -> float:
        """Seconds since the start."""
        return asyncio.get_running_loop().time() - self._start_s

    def stop(self) -> None:
        """Send nothing more; `run` returns when what is in flight has ended."""
        self._stopped.set()

    async def run(self) -> None:
        """Send, each request in its time whatever became of the ones before."""
        self._start_s = asyncio.get_running_loop().time()
        target = Target.of(self.url)
        async with asyncio.TaskGroup() as group:
            in_flight: set[asyncio.Task[None]] = set()
            for number, arrival in enumerate(workload(self.rate_rps, self.seed), 1):
                if await self._stopped_before(arrival.at_s):
                    break
                if len(in_flight) >= IN_FLIGHT_MAX:
                    self.skipped += 1
                    continue
                in_flight.add(task := group.create_task(self._send(target, arrival, number)))
                task.add_done_callback(in_flight.discard)

    async def _stopped_before(self, at_s: float) -> bool:
        try:
            async with asyncio.timeout(max(0.0, at_s - self.now_s())):
                await self._stopped.wait()
        except TimeoutError:
            return False
        return True

    async def _send(self, target: Target, arrival: Arrival, number: int) -> None:
        loop = asyncio.get_running_loop()
        request = target.request(chat_body(self.model, arrival, number))
        stream = NamedStream(loop, request)
        outcome = Outcome.TIMEOUT
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await loop.create_connection(lambda: stream, target.host, target.port)
                await stream.finished
                outcome = stream.outcome
        except OSError as error:  # TimeoutError is one
            outcome = Outcome.TIMEOUT if isinstance(error, TimeoutError) else Outcome.CONNECT_ERROR
        finally:
            stream.close()
        self.requests.append(
            Request(
                start_s=arrival.at_s,
                end_s=self.now_s(),
                outcome=outcome,
                status=stream.status,
                router=stream.router,
                ttft_ms=None if stream.first_s is None else (stream.first_s - self._start_s - arrival.at_s) * 1000,
            )
        )
