"""TensorRT-LLM's `trtllm-serve`: its Prometheus page (`/prometheus/metrics`) and its iteration statistics (`/metrics`).

Both need `enable_iter_perf_stats`. The statistics are a JSON list of what happened since it was last read, whoever read
it: so the Prometheus page is preferred, the last iteration counts, and an empty list says nothing new. Paused requests
were preempted; they wait. Prefix hits and queries are blocks.
"""

from typing import Any

import msgspec

from evenload.collector.engines.page import Page
from evenload.collector.engines.scan import COUNT_MAX, Scan

MARK = b"trtllm_"


def parse(page: bytes) -> Page:
    """Read a page of either form; whatever it holds, the result is within the bounds of the wire."""
    return parse_iterations(page) if page.lstrip()[:1] == b"[" else parse_prometheus(page)


def parse_prometheus(page: bytes) -> Page:
    """Read the Prometheus page."""
    scan = Scan(page)
    hits = scan.count(b"trtllm_kv_cache_reused_blocks_total")
    return Page(
        running=scan.count(b"trtllm_num_requests_running"),
        waiting=_sum(scan.count(b"trtllm_num_requests_waiting"), scan.count(b"trtllm_num_paused_requests") or 0),
        kv_usage=scan.share(b"trtllm_kv_cache_utilization"),
        prefix_hits=hits,
        prefix_queries=_sum(hits, scan.count(b"trtllm_kv_cache_missed_blocks_total")),
        started_s=scan.moment(b"process_start_time_seconds"),
        dropped=scan.dropped,
    )


def parse_iterations(page: bytes) -> Page:
    """Read the list of iterations."""
    try:
        iterations = msgspec.json.decode(page)
    except (msgspec.DecodeError, RecursionError):
        return Page(dropped=1)
    if not isinstance(iterations, list):
        return Page(dropped=1)
    if not iterations:
        return Page(quiet=True)
    last = _Fields(iterations[-1])
    cache, batch = last.inner("kvCacheStats"), last.inner("inflightBatchingStats")
    hits = cache.count("reusedBlocks")
    used, blocks = cache.count("usedNumBlocks"), cache.count("maxNumBlocks")
    impossible = used is not None and blocks is not None and used > blocks
    return Page(
        running=last.count("numActiveRequests"),
        waiting=_sum(last.count("numQueuedRequests"), batch.count("numPausedRequests") or 0),
        kv_usage=None if used is None or not blocks or impossible else used / blocks,
        prefix_hits=hits,
        prefix_queries=_sum(hits, cache.count("missedBlocks")),
        progress=last.count("iter"),
        dropped=last.dropped + cache.dropped + batch.dropped + impossible,
    )


def _sum(one: int | None, other: int | None) -> int | None:
    total = None if one is None or other is None else one + other
    return None if total is None or total > COUNT_MAX else total


class _Fields:
    """One JSON object whose values are not trusted."""

    def __init__(self, data: Any) -> None:
        self._data: dict[str, Any] = data if isinstance(data, dict) else {}
        self.dropped = 0 if isinstance(data, dict) else 1

    def inner(self, name: str) -> "_Fields":
        return _Fields(self._data.get(name, {}))

    def count(self, name: str) -> int | None:
        value = self._data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= COUNT_MAX:
            self.dropped += 1
            return None
        return int(value)
