"""Prometheus metrics of telemetry that Kafka did not take, the same in routers and collectors."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evenload.bus.emitter import Emitter


class SpoolMetrics(Collector):
    """Reads an emitter when the page is read."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def collect(self) -> Iterator[Metric]:
        """Yield what is lost, by reason; and the spool, if there is one."""
        overflow = self._emitter.overflow
        lost = CounterMetricFamily(
            "evenload_telemetry_lost_events", "Telemetry events that Kafka will never get.", labels=["reason"]
        )
        reasons = self._emitter.lost | {"unreadable": 0 if overflow is None else overflow.folder.figures.lost_events}
        for reason, events in reasons.items():
            lost.add_metric([reason], events)
        yield lost
        if overflow is None:
            return
        figures = overflow.folder.figures
        gauges = {
            "up": ("1 if the folder can be used.", float(overflow.folder.is_open)),
            "bytes": ("Bytes of the spool's segments.", figures.bytes),
            "records": ("Batches on disk.", figures.records),
            "events": ("Events on disk.", figures.events),
            "oldest_seconds": ("Age of the oldest batch on disk.", overflow.oldest_ms / 1000),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"evenload_spool_{name}", text, value=value)
        yield CounterMetricFamily(
            "evenload_spool_written_events", "Events that went to disk.", value=overflow.stored_events
        )
        yield CounterMetricFamily(
            "evenload_spool_damaged_segments", "Segments with unreadable bytes.", value=figures.damaged_segments
        )
