"""Reading workloads: public traces and any CSV of arrivals and sizes, strictly. Start in `trace.py`."""

from evenload.workload.trace import Arrival, Trace, TraceError, read_trace

__all__ = ["Arrival", "Trace", "TraceError", "read_trace"]
