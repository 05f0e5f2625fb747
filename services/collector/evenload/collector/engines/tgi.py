"""Text Generation Inference's `/metrics`. It says nothing of its KV cache; the queue is the signal.

Gauges appear with the first request. Until then they are unknown.
"""

from evenload.collector.engines.page import Page
from evenload.collector.engines.scan import Scan

MARK = b"tgi_"


def parse(page: bytes) -> Page:
    """Read a page; whatever it holds, the result is within the bounds of the wire."""
    scan = Scan(page)
    return Page(
        running=scan.count(b"tgi_batch_current_size"),
        waiting=scan.count(b"tgi_queue_size"),
        started_s=scan.moment(b"process_start_time_seconds"),
        progress=scan.count(b"tgi_batch_inference_count"),
        dropped=scan.dropped,
        offers=("running", "waiting"),
    )
