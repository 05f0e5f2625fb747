"""What sources say, as metrics of the process that follows them."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as MetricSource

from evenload.discovery.discovery import Discovery


class DiscoveryMetrics(MetricSource):
    """Read off the live object when Prometheus asks.

    Args:
        discovery: returns it, None while there is none.
    """

    def __init__(self, discovery: Callable[[], Discovery | None]) -> None:
        self._discovery = discovery

    def collect(self) -> Iterator[Metric]:
        """Return all families."""
        by = ["pool", "source"]
        instances = GaugeMetricFamily("evenload_discovery_instances", "Instances that a source found last.", labels=by)
        failing = GaugeMetricFamily("evenload_discovery_failing", "1 while a source says nothing.", labels=by)
        failures = CounterMetricFamily("evenload_discovery_failures", "How often a source said nothing.", labels=by)
        applied = CounterMetricFamily("evenload_discovery_changes", "Changes of the instances.", labels=["result"])
        discovery = self._discovery()
        if discovery is not None:
            for slot in discovery.slots:
                name = ["" if slot.pool is None else slot.pool.name, slot.label]
                instances.add_metric(name, len(slot.instances or ()))
                failing.add_metric(name, float(bool(slot.failing)))
                failures.add_metric(name, slot.failures)
            applied.add_metric(["ok"], discovery.applied)
            applied.add_metric(["refused"], discovery.refused)
        yield from (instances, failing, failures, applied)
