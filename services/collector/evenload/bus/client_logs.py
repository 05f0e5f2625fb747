"""Loggers that stay quiet in an outage: ours say one line per cause and period, the Kafka client one line in all.

The client writes several lines per failed attempt and tries ten times a second, while `link.py` and `snapshots.py` say
themselves what is wrong.
"""

import logging
import time
from collections.abc import Callable

from evenload.bus.logs import PERIOD_S, RateLimitFilter

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


class OneLineFilter(logging.Filter):
    """Lets through one record per period and level, whatever it says."""

    def __init__(self, period_s: float = PERIOD_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._period_s = period_s
        self._clock = clock
        self._last_s: dict[int, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether to write the record."""
        now_s = self._clock()
        if now_s - self._last_s.get(record.levelno, -self._period_s) < self._period_s:
            return False
        self._last_s[record.levelno] = now_s
        return True


_shared = OneLineFilter()


def limit_client_logs() -> None:
    """Limit the Kafka client library of this process, all its loggers together. Adding a filter twice does nothing."""
    for name in _CLIENT_LOGGERS:
        logging.getLogger(name).addFilter(_shared)


def limited_logger(name: str) -> logging.Logger:
    """Return the logger of that name, limited to one line per cause and period."""
    logger = logging.getLogger(name)
    if not any(isinstance(present, RateLimitFilter) for present in logger.filters):
        logger.addFilter(RateLimitFilter())
    return logger
