"""Loggers that stay quiet in an outage: one line per cause and period, whoever notices it.

Several connections of a process lose Kafka at once, so that is one cause. The client writes several lines per failed
attempt and tries ten times a second, while `link.py` and `snapshots.py` say themselves what is wrong.
"""

import logging
import math
import time
from collections.abc import Callable

from evenload.bus.logs import PERIOD_S, RateLimitFilter

AWAY = {"cause": "kafka is away"}  # `extra` of a line that says so

# A filter on a parent logger does not see the records of its children, so each is named.
_CLIENT_LOGGERS = (
    "aiokafka",
    "aiokafka.admin.client",
    "aiokafka.cluster",
    "aiokafka.conn",
    "aiokafka.consumer.consumer",
    "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
    "aiokafka.consumer.subscription_state",
    "aiokafka.helpers",
    "aiokafka.producer.producer",
    "aiokafka.producer.sender",
)


class ClientFilter(logging.Filter):
    """Lets the Kafka client speak once in two periods, and only while nothing of ours says that Kafka is away.

    It is always first to notice, so what it says is held back until ours has had its turn.
    """

    def __init__(
        self, ours: RateLimitFilter, period_s: float = PERIOD_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._ours = ours
        self._patience_s = 2.0 * period_s
        self._clock = clock
        self._last_s = self._since_s = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 - whatever it says
        """Tell whether to write the record."""
        now_s = self._clock()
        if now_s - self._last_s >= self._patience_s:
            self._since_s = now_s  # new trouble
        self._last_s = now_s
        said_s = self._ours.said_s(AWAY["cause"])
        if now_s - max(self._since_s, -math.inf if said_s is None else said_s) < self._patience_s:
            return False
        self._since_s = now_s
        return True


_limit = RateLimitFilter()  # one for all loggers of ours: who notices that Kafka is away does not matter
_client = ClientFilter(_limit)


def limit_client_logs() -> None:
    """Limit the Kafka client library of this process, all its loggers together. Adding a filter twice does nothing."""
    for name in _CLIENT_LOGGERS:
        logging.getLogger(name).addFilter(_client)


def limited_logger(name: str) -> logging.Logger:
    """Return the logger of that name, limited to one line per cause and period."""
    logger = logging.getLogger(name)
    logger.addFilter(_limit)  # twice is once
    return logger
