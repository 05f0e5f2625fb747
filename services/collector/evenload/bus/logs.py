"""Keeping logs readable while Kafka is away: client libraries write thousands of lines then, all of one cause."""

import logging
import re
import time
from collections.abc import Callable, Collection

PERIOD_S = 10.0
CAUSES_MAX = 256

_VARIABLE = re.compile(r"0x[0-9a-f]+|\d+")


class RateLimitFilter(logging.Filter):
    """Lets through one record per period and cause; what was held back is counted in the next one let through.

    A cause is what a record names as its attribute `cause`, else logger, level and text without its numbers. Attach it
    to handlers, or to the one logger that it concerns: filters of a logger do not see what its children write.
    """

    def __init__(
        self,
        period_s: float = PERIOD_S,
        level: int = logging.WARNING,
        one_cause: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Limit records.

        Args:
            period_s: Least time between two records of one cause.
            level: Records below it are not limited.
            one_cause: Loggers of which all that they and their children write counts as one cause.
            clock: Monotonic seconds.
        """
        super().__init__()
        self._period_s = period_s
        self._level = level
        self._one_cause = tuple(one_cause)
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}  # cause -> when let through last, held back since

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether to write the record; adds how many like it were held back."""
        if record.levelno < self._level:
            return True
        text = record.getMessage()
        cause = self._cause(record, text)
        now = self._clock()
        last, held = self._seen.pop(cause, (None, 0))
        if last is not None and now - last < self._period_s:
            self._seen[cause] = (last, held + 1)
            return False
        if len(self._seen) >= CAUSES_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[cause] = (now, 0)
        if held:
            record.msg, record.args = f"{text} ({held} more of this cause held back)", None
        return True

    def said_s(self, cause: str) -> float | None:
        """Return when a record of a cause was let through last; None for never."""
        seen = self._seen.get(cause)
        return None if seen is None else seen[0]

    def _cause(self, record: logging.LogRecord, text: str) -> str:
        named: str | None = getattr(record, "cause", None)
        if named is not None:
            return named
        for name in self._one_cause:
            if record.name == name or record.name.startswith(f"{name}."):
                return name
        return f"{record.name} {record.levelno} {_VARIABLE.sub('#', text[:200])}"


def quieten(*names: str, level: int = logging.WARNING) -> None:
    """Let libraries write from `level` on, and limit every handler of the root logger to one line per cause.

    An unreachable Kafka shows as a dozen kinds of lines of its client, which therefore count as one cause.
    """
    for name in names:
        logging.getLogger(name).setLevel(level)
    for handler in logging.getLogger().handlers:
        if not any(isinstance(known, RateLimitFilter) for known in handler.filters):
            handler.addFilter(RateLimitFilter(one_cause=("aiokafka",)))
