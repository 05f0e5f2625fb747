"""TensorRT-LLM below Triton: `nv_trt_llm_*` on Triton's metrics port (8002 unless set), so `metrics_url` says where.

One series per `model` and state. `scheduled` are the requests of the running batch. A model that does not batch
in flight has no such lines, and then nothing is known.
"""

from evenload.collector.engines.page import Page
from evenload.collector.engines.scan import Scan

MARK = b"nv_trt_llm_"


def parse(page: bytes) -> Page:
    """Read a page; whatever it holds, the result is within the bounds of the wire."""
    scan = Scan(page)
    requests, blocks = b"nv_trt_llm_request_metrics", b"nv_trt_llm_kv_cache_block_metrics"
    return Page(
        running=scan.count(requests, where=b'request_type="scheduled"'),
        waiting=scan.count(requests, where=b'request_type="waiting"'),
        kv_usage=scan.share(blocks, where=b'kv_cache_block_type="fraction"'),
        started_s=scan.moment(b"process_start_time_seconds"),
        dropped=scan.dropped,
    )
