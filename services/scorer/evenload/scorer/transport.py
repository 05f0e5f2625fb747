"""Faust's Kafka transport, quicker: fewer fetches, a shorter long poll; and calmer while Kafka is away.

- A fetch is answered as soon as one record is there, and costs as much as several records: so fetches are some ms
  apart, and a second has 100 of them instead of one per record.
- A broker answers the requests of one connection in turn, so whatever recovery asks between two fetches waits until the
  fetch under way is over: 1.5 s each time, several times per rebalance, while no telemetry is applied.
- While nobody answers, each of a dozen loops inside the client tries again after 100 ms: 85 connections a second, a
  third of a core.

Faust offers no setting for any of these.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from faust.transport.drivers import aiokafka as driver

from evenload.bus.link import tolerate_retried_batches

FETCH_MS = 200
FETCH_APART_MS = 10  # between the beginnings of two fetches
RETRY_MS = 500  # a rebalance that meets an error waits as long; joins and heartbeats that go well never do


class _ConsumerThread(driver.AIOKafkaConsumerThread):  # type: ignore[misc]
    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_MS  # these three are read when it starts
        consumer._retry_backoff_ms = RETRY_MS
        consumer._client._retry_backoff = RETRY_MS / 1000
        return consumer

    async def on_start(self) -> None:
        await super().on_start()
        fetcher = self._consumer._fetcher
        fetcher._proc_fetch_request = _apart(fetcher._proc_fetch_request, FETCH_APART_MS / 1000)


def _apart(fetch: Callable[..., Awaitable[bool]], period_s: float) -> Callable[..., Awaitable[bool]]:
    """Let calls of aiokafka's fetch begin at least `period_s` apart; cancelled, it says like the original: no data."""
    clock = asyncio.get_running_loop()
    last_s = clock.time() - period_s

    async def later(*args: Any) -> bool:
        nonlocal last_s
        try:
            await asyncio.sleep(last_s + period_s - clock.time())
        except asyncio.CancelledError:
            return False
        last_s = clock.time()
        return await fetch(*args)

    return later


class _Consumer(driver.Consumer):  # type: ignore[misc]
    def _new_consumer_thread(self) -> _ConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    def verify_event_path(self, now: float, tp: Any) -> None:
        """Do not look: Faust takes a changelog that is only read at starts for a stuck stream and says so for ever.

        What can get stuck here, the telemetry, is looked at by `watchdog.py`.
        """


class _Producer(driver.Producer):  # type: ignore[misc]
    def _settings_default(self) -> dict[str, Any]:
        return {**super()._settings_default(), "retry_backoff_ms": RETRY_MS}

    def _new_producer(self, transactional_id: str | None = None) -> Any:
        producer = super()._new_producer(transactional_id)
        tolerate_retried_batches(producer)
        return producer


class QuickTransport(driver.Transport):  # type: ignore[misc]
    """The transport for `app.transport`."""

    Consumer = _Consumer
    Producer = _Producer
