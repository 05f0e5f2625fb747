"""SGLang's `/metrics` (`--enable-metrics`).

Series carry `dp_rank` where attention is data parallel: queues are summed over it. Other ranks (`tp_rank`, `pp_rank`,
`moe_ep_rank`) repeat what one scheduler sees, so the largest of them counts. With priority scheduling there is one
series per `priority` and one with an empty `priority` for all; then the largest is that one. Prefix hits are prompt
tokens found in the cache. It says no process start.
"""

from evenload.collector.engines.page import Page
from evenload.collector.engines.scan import Scan

MARK = b"sglang:"


def parse(page: bytes) -> Page:
    """Read a page; whatever it holds, the result is within the bounds of the wire."""
    scan = Scan(page)
    return Page(
        running=scan.count(b"sglang:num_running_reqs", per=b"dp_rank"),
        waiting=scan.count(b"sglang:num_queue_reqs", per=b"dp_rank"),
        kv_usage=scan.share(b"sglang:token_usage"),
        prefix_hits=scan.count(b"sglang:cached_tokens_total"),
        prefix_queries=scan.count(b"sglang:prompt_tokens_total"),
        preemptions=scan.count(b"sglang:num_retracted_requests_total", per=b"dp_rank"),
        started_s=scan.moment(b"process_start_time_seconds"),
        progress=scan.count(b"sglang:realtime_tokens_total"),
        dropped=scan.dropped,
    )
