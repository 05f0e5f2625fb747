"""llama.cpp's server (`--metrics`). Requests without a slot are deferred.

`kv_cache_usage_ratio` was removed in 2025, so an engine without it lacks nothing.
"""

from evenload.collector.engines.page import Page
from evenload.collector.engines.scan import Scan

MARK = b"llamacpp:"


def parse(page: bytes) -> Page:
    """Read a page; whatever it holds, the result is within the bounds of the wire."""
    scan = Scan(page)
    return Page(
        running=scan.count(b"llamacpp:requests_processing"),
        waiting=scan.count(b"llamacpp:requests_deferred"),
        kv_usage=scan.share(b"llamacpp:kv_cache_usage_ratio"),
        progress=scan.count(b"llamacpp:n_decode_total"),
        dropped=scan.dropped,
        offers=("running", "waiting"),
    )
