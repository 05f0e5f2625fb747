"""Faust's Kafka transport with a shorter long poll, and calmer while Kafka is away.

A broker answers the requests of one connection in turn, so whatever recovery asks between two fetches waits until the
fetch under way is over: 1.5 s each time, several times per rebalance, while no telemetry is applied. And while nobody
answers, each of a dozen loops inside the client tries again after 100 ms: 85 connections a second, a third of a core.
Faust offers no setting for either.
"""

from typing import Any

from faust.transport.drivers import aiokafka as driver

from evenload.bus.link import tolerate_retried_batches

FETCH_MS = 200
RETRY_MS = 500  # a rebalance that meets an error waits as long; joins and heartbeats that go well never do


class _ConsumerThread(driver.AIOKafkaConsumerThread):  # type: ignore[misc]
    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_MS  # these three are read when it starts
        consumer._retry_backoff_ms = RETRY_MS
        consumer._client._retry_backoff = RETRY_MS / 1000
        return consumer


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
