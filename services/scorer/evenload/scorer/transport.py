"""Faust's Kafka transport with a shorter long poll.

A broker answers the requests of one connection in turn, so whatever recovery asks between two fetches waits until the
fetch under way is over: 1.5 s each time, several times per rebalance, while no telemetry is applied. Faust offers no
setting for it.
"""

from typing import Any

from faust.transport.drivers import aiokafka as driver

FETCH_MS = 200


class _ConsumerThread(driver.AIOKafkaConsumerThread):  # type: ignore[misc]
    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_MS  # read when it starts
        return consumer


class _Consumer(driver.Consumer):  # type: ignore[misc]
    def _new_consumer_thread(self) -> _ConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)


class QuickTransport(driver.Transport):  # type: ignore[misc]
    """The transport for `app.transport`."""

    Consumer = _Consumer
