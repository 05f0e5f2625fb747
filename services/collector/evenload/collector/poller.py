"""Asking one instance: its page each time, `/health` and `/v1/models` now and then.

One poll is in flight, each with its own limit, over connections of its own: one that hangs holds up nobody else.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection

from evenload.bus.client_logs import limited_logger
from evenload.collector.access import Access
from evenload.collector.engines.adapters import AUTO, Endpoint
from evenload.collector.engines.page import Page
from evenload.collector.http_get import GetError, HttpGetter
from evenload.collector.models import listed
from evenload.collector.watch import Watch
from evenload.schemas import Event, InstanceState

log = limited_logger(__name__)

_STRICT = "vllm"  # it alone refuses names that it does not list; others answer whatever they are called


class Poller:
    """Polls one instance until cancelled.

    Attributes:
        watch: what is known of it.
        endpoint: where its page is, and whose.
        polls, failed: how many were made, and how many of them gave no page.
        dropped: impossible values on its pages.
    """

    def __init__(
        self,
        watch: Watch,
        url: str,
        timeout_s: float,
        emit: Callable[[Event], object],
        *,
        kind: str = AUTO,
        metrics_url: str | None = None,
        models: Collection[str] = (),
        owned: Callable[[], bool] = lambda: True,
        access: Access | None = None,
    ) -> None:
        """Take what to watch, where it is, the limit of one poll and where events go.

        Args:
            watch: of the instance.
            url: its base address.
            timeout_s: limit of one poll.
            emit: takes events.
            kind: of the engine, `auto` to find out.
            metrics_url: address of its page, if that is elsewhere.
            models: names of which it must list one to be ready; empty if any will do.
            owned: whether it is for this collector to poll it, now.
            access: its key and authorities; a page at another address gets the key of nobody.
        """
        self.watch = watch
        self.polls = self.failed = self.dropped = 0
        self._getter = HttpGetter(url) if access is None else HttpGetter(url, access.headers, access.tls)
        self.endpoint, base = Endpoint.of(kind, url, metrics_url)
        self._pages = self._getter if metrics_url is None else HttpGetter(base, tls=access and access.tls)
        self._timeout_s = timeout_s
        self._emit = emit
        self._models = models
        self._owned = owned
        self._resting = False
        self._missing: tuple[str, ...] = ()

    async def run(self, phase_s: float) -> None:
        """Poll, the first time after `phase_s`, so that a thousand instances are not asked in one moment."""
        await asyncio.sleep(phase_s)
        try:
            while True:
                begun_s = time.monotonic()
                if self._owned():
                    self._resting = False
                    await self.poll()
                else:
                    self._rest()
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

    def on_snapshot(self, state: InstanceState) -> None:
        """Take what the scorer believes of the instance."""
        if self._owned():  # else another collector has the say
            self._emit_all(self.watch.on_snapshot(state, _now_ms()))

    def close(self) -> None:
        """Drop the connections."""
        self._getter.close()
        self._pages.close()

    def _rest(self) -> None:
        """Leave the instance to another collector."""
        if not self._resting:
            self._resting, self.watch = True, self.watch.renewed()
            self.close()

    async def _ask(self) -> None:
        path = self.endpoint.path
        status, body = await self._pages.get(path)
        page = self.endpoint.read(status, body)
        if page is None:
            self._fail("status" if status != 200 else "unknown", f"{path} answered {status}, no page of a known engine")
        else:
            self._take(page)
        if page is None or self.watch.wants_health(_now_ms()):
            answer = await self._getter.get("/health")
            self._emit_all(self.watch.on_health(answer.status, _now_ms()))
            await self._ask_models()

    async def _ask_models(self) -> None:
        if not self.watch.wants_models():
            return
        try:
            status, body = await self._getter.get("/v1/models")
        except (GetError, asyncio.CancelledError):
            self._emit_all(self.watch.on_no_models(_now_ms()))
            raise
        wanted = self._models if self.endpoint.kind == _STRICT else ()
        self._emit_all(self.watch.on_models(listed(status, body, wanted), _now_ms()))

    def _take(self, page: Page) -> None:
        self.dropped += page.dropped
        vanished = self.watch.vanished
        self._emit_all(self.watch.on_page(page, _now_ms()))
        self._say_missing(page.missing)
        if lost := set(self.watch.vanished).difference(vanished):
            log.error("%s no longer says %s: unknown from now on", self.watch.instance, ", ".join(sorted(lost)))

    def _fail(self, cause: str, detail: str) -> None:
        self.failed += 1
        if not self.watch.failures:
            log.warning("polling %s failed: %s", self.watch.instance, detail)
        self._emit_all(self.watch.on_failure(cause, _now_ms()))

    def _say_missing(self, missing: tuple[str, ...]) -> None:
        if missing != self._missing and missing:
            log.warning("%s does not say %s on its page", self.watch.instance, ", ".join(missing))
        self._missing = missing

    def _emit_all(self, events: list[Event]) -> None:
        for event in events:
            self._emit(event)


def _now_ms() -> float:
    return time.monotonic() * 1000
