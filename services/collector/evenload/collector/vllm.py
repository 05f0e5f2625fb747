"""vLLM's `/metrics` page, and those that imitate it: the handful of lines that matter.

Data-parallel engines show one series per `engine`: queues and counters are summed, KV usage is the worst of them. A
metric that is absent, or of which any series is not a possible number, is unknown (None), never 0: a partial sum would
make the instance look less loaded than it is.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from evenload.schemas import EngineGauges

COUNT_MAX = 2**53
STARTED_S_MAX = 1e12
SERIES_MAX = 4096  # per metric; a page with more is not an engine's

_RUNNING = (b"vllm:num_requests_running",)
_WAITING = (b"vllm:num_requests_waiting",)
_KV_USAGE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")  # renamed in vLLM 0.10
_PREFIX_HITS = (b"vllm:prefix_cache_hits_total", b"vllm:gpu_prefix_cache_hits_total")
_PREFIX_QUERIES = (b"vllm:prefix_cache_queries_total", b"vllm:gpu_prefix_cache_queries_total")
_PREEMPTIONS = (b"vllm:num_preemptions_total",)
_STARTED = (b"process_start_time_seconds",)


@dataclass(frozen=True, slots=True)
class Page:
    """What a page said; None is unknown.

    Attributes:
        kv_usage: 0..1.
        started_s: when the engine's process began, seconds since the epoch.
        dropped: values on it that cannot be.
    """

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    prefix_hits: int | None = None
    prefix_queries: int | None = None
    preemptions: int | None = None
    started_s: float | None = None
    dropped: int = 0

    @property
    def missing(self) -> tuple[str, ...]:
        """The gauges that scores need and that are unknown."""
        return tuple(name for name in ("running", "waiting", "kv_usage") if getattr(self, name) is None)

    def event(self, instance: str) -> EngineGauges:
        """Return what the log is told."""
        return EngineGauges(
            instance=instance,
            running=self.running,
            waiting=self.waiting,
            kv_usage=self.kv_usage,
            prefix_hits=self.prefix_hits,
            prefix_queries=self.prefix_queries,
            preemptions=self.preemptions,
            started_s=self.started_s,
        )


def parse(page: bytes) -> Page:
    """Read a metrics page; whatever it holds, the result is within the bounds of the wire."""
    text = b"\n" + page
    dropped = 0

    def read(names: tuple[bytes, ...], top: float, fold: Callable[[Iterable[float]], float]) -> float | None:
        nonlocal dropped
        for name in names:
            values = _values(text, name)
            if not values:
                continue
            good = [value for value in values if value is not None and 0 <= value <= top]
            dropped += len(values) - len(good)
            if len(good) == len(values) and (result := fold(good)) <= top:
                return result
            return None
        return None

    def count(names: tuple[bytes, ...]) -> int | None:
        value = read(names, COUNT_MAX, sum)
        return None if value is None else int(value)

    return Page(
        running=count(_RUNNING),
        waiting=count(_WAITING),
        kv_usage=read(_KV_USAGE, 1.0, max),
        prefix_hits=count(_PREFIX_HITS),
        prefix_queries=count(_PREFIX_QUERIES),
        preemptions=count(_PREEMPTIONS),
        started_s=read(_STARTED, STARTED_S_MAX, max),
        dropped=dropped,
    )


def _values(text: bytes, name: bytes) -> list[float | None]:
    """Values of all series of a metric, None for one that is not a number."""
    values: list[float | None] = []
    needle = b"\n" + name
    at = text.find(needle)
    while at >= 0 and len(values) < SERIES_MAX:
        begin = at + len(needle)
        end = text.find(b"\n", begin)
        line = text[begin:] if end < 0 else text[begin:end]
        if line[:1] in (b"{", b" ", b"\t"):  # else it is a longer name
            values.append(_value(line))
        at = text.find(needle, begin)
    return values


def _value(line: bytes) -> float | None:
    """Value of a line after its name: `{labels} value [timestamp]`, labels being optional."""
    if line.startswith(b"{"):
        line = line[_labels_end(line) :]
    fields = line.split(None, 1)
    if not fields or b"_" in fields[0]:  # Python would read 1_0 as a number
        return None
    try:
        return float(fields[0])
    except ValueError:
        return None


def _labels_end(line: bytes) -> int:
    """Index after the closing brace; label values may hold braces, blanks and escaped quotes."""
    if b'"' not in line:
        return line.find(b"}") + 1 or len(line)
    quoted = escaped = False
    for index, char in enumerate(line):
        if escaped:
            escaped = False
        elif quoted:
            escaped = char == 0x5C
            quoted = char != 0x22
        elif char == 0x22:
            quoted = True
        elif char == 0x7D:
            return index + 1
    return len(line)
