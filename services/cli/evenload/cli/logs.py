"""Logging of every process: one line per record on stderr, and no flood when something stays broken."""

import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TextIO

from evenload.settings import LogSettings

REPEAT_S = 10.0
CAUSES_MAX = 512
# These write several lines for every attempt to reach a broker, and one per record at debug level; botocore's have
# session tokens in them.
QUIET_LOGGERS = ("aiokafka", "botocore", "faust", "mode", "kafka", "asyncio", "urllib3", "uvicorn.access")
DIGITS = re.compile(r"\d+")


class RepeatFilter(logging.Filter):
    """Let one warning per cause through in 10 s, and say with the next one how many were held back.

    A cause is the place in the code and the message without its numbers. The table is bounded; the cause that was
    silent for longest is forgotten first.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, repeat_s: float = REPEAT_S) -> None:
        super().__init__()
        self._clock = clock
        self._repeat_s = repeat_s
        self._causes: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether a record is written; a record that follows held-back ones is given their number."""
        if record.levelno < logging.WARNING or getattr(record, "every", False):  # `problems.EVERY`
            return True
        cause = (record.pathname, record.lineno, DIGITS.sub("", record.getMessage())[:200])
        now = self._clock()
        last, held = self._causes.pop(cause, (now - self._repeat_s, 0))
        allowed = now - last >= self._repeat_s
        self._causes[cause] = (now, 0) if allowed else (last, held + 1)
        while len(self._causes) > CAUSES_MAX:
            self._causes.popitem(last=False)
        record.repeated = held if allowed else 0
        return allowed


class LineFormatter(logging.Formatter):
    """`2026-11-30T12:00:00.123Z WARNING router message`, always on one line."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Render a record as text."""
        text = self.message_of(record).replace("\r", "").replace("\n", "\\n")
        return f"{self.time_of(record)} {record.levelname} {self._service} {text}"

    def time_of(self, record: logging.LogRecord) -> str:
        """ISO 8601 in UTC, with milliseconds."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"

    def message_of(self, record: logging.LogRecord) -> str:
        """The message, how often it was held back, and the traceback if there is one."""
        parts = [record.getMessage()]
        repeated = getattr(record, "repeated", 0)
        if repeated:
            parts[0] += f" (and {repeated} more like it)"
        if record.exc_info:
            parts.append(self.formatException(record.exc_info))
        return "\n".join(parts)


class JsonFormatter(LineFormatter):
    """One JSON object per record: time, level, service, logger, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Render a record as JSON."""
        fields = {
            "time": self.time_of(record),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": self.message_of(record),
        }
        return json.dumps(fields, ensure_ascii=False)


def setup_logging(log: LogSettings, service: str, stream: TextIO | None = None) -> None:
    """Make the root logger write records of `service`; replaces the handlers that were there.

    Args:
        log: Level and format.
        service: Name of the process, as it stands in every line.
        stream: Where to write; stderr if not given.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter(service) if log.format == "json" else LineFormatter(service))
    handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(log.level_number)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, log.level_number))
