"""Asking one instance: `/metrics` each time, `/health` now and then; one poll in flight, each with its own limit."""

import asyncio
import random
import time
from collections.abc import Callable

from evenload.bus.client_logs import limited_logger
from evenload.collector.http_get import GetError, HttpGetter
from evenload.collector.vllm import parse
from evenload.collector.watch import Watch
from evenload.schemas import Event

log = limited_logger(__name__)


class Poller:
    """Polls one instance until cancelled.

    Attributes:
        watch: what is known of it.
        polls, failed: how many were made, and how many of them gave no page.
        dropped: impossible values on its pages.
    """

    def __init__(self, watch: Watch, url: str, timeout_s: float, emit: Callable[[Event], object]) -> None:
        """Take what to watch, where it is, the limit of one poll and where events go."""
        self.watch = watch
        self.polls = self.failed = self.dropped = 0
        self._getter = HttpGetter(url)
        self._timeout_s = timeout_s
        self._emit = emit
        self._missing: tuple[str, ...] = ()

    async def run(self, phase_s: float) -> None:
        """Poll, the first time after `phase_s`, so that a thousand instances are not asked in one moment."""
        await asyncio.sleep(phase_s)
        try:
            while True:
                begun_s = time.monotonic()
                await self.poll()
                spent_s = time.monotonic() - begun_s
                pause_s = self.watch.pause_ms() / 1000 * random.uniform(0.95, 1.05)
                await asyncio.sleep(max(0.01, pause_s - spent_s))
        finally:
            self.close()

    async def poll(self) -> None:
        """Ask once and emit what follows."""
        self.polls += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._ask()
        except TimeoutError:
            self._fail("timeout", f"no answer within {self._timeout_s:g} s")
        except GetError as error:
            self._fail(error.cause, str(error))

    def close(self) -> None:
        """Drop the connection."""
        self._getter.close()

    async def _ask(self) -> None:
        status, body = await self._getter.get("/metrics")
        if status == 200:
            page = parse(body)
            self.dropped += page.dropped
            self._say_missing(page.missing)
            self._emit_all(self.watch.on_page(page, _now_ms()))
        else:
            self._fail("status", f"/metrics answered {status}")
        if status != 200 or self.watch.wants_health(_now_ms()):
            answer = await self._getter.get("/health")
            self._emit_all(self.watch.on_health(answer.status, _now_ms()))

    def _fail(self, cause: str, detail: str) -> None:
        self.failed += 1
        if not self.watch.failures:
            log.warning("polling %s failed: %s", self.watch.instance, detail)
        self._emit_all(self.watch.on_failure(cause, _now_ms()))

    def _say_missing(self, missing: tuple[str, ...]) -> None:
        if missing != self._missing and missing:
            log.warning("%s does not say %s on its /metrics", self.watch.instance, ", ".join(missing))
        self._missing = missing

    def _emit_all(self, events: list[Event]) -> None:
        for event in events:
            self._emit(event)


def _now_ms() -> float:
    return time.monotonic() * 1000
