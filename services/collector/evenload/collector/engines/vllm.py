"""vLLM's `/metrics`, of engine v0 and v1, and of those that imitate it.

Data-parallel engines show one series per `engine`: queues and counters are summed, KV usage is the worst of them.
`kv_cache_usage_perc` was `gpu_cache_usage_perc` before 0.10. Counters of admission come without `engine`.
"""

from evenload.collector.engines.page import Page
from evenload.collector.engines.scan import Scan

MARK = b"vllm:"


def parse(page: bytes) -> Page:
    """Read a page; whatever it holds, the result is within the bounds of the wire."""
    scan = Scan(page)
    waiting = scan.count(b"vllm:num_requests_waiting")
    by_reason = b"vllm:num_requests_waiting_by_reason"
    awake = scan.count(b"vllm:engine_sleep_state", where=b'sleep_state="awake"')
    return Page(
        running=scan.count(b"vllm:num_requests_running"),
        waiting=scan.count(by_reason) if waiting is None else waiting,
        kv_usage=scan.share(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
        prefix_hits=scan.count(b"vllm:prefix_cache_hits_total", b"vllm:gpu_prefix_cache_hits_total"),
        prefix_queries=scan.count(b"vllm:prefix_cache_queries_total", b"vllm:gpu_prefix_cache_queries_total"),
        preemptions=scan.count(b"vllm:num_preemptions_total"),
        started_s=scan.moment(b"process_start_time_seconds"),
        deferred=scan.count(by_reason, where=b'reason="deferred"'),
        rejections=scan.count(b"vllm:admission_rejections_total"),
        # Steps, not tokens: while long prompts are prefilled in chunks, no token comes for many steps.
        progress=scan.count(b"vllm:iteration_tokens_total_count"),
        asleep=awake == 0,
        dropped=scan.dropped,
    )
