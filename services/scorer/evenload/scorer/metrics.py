"""The worker's Prometheus metrics, read from what it counts anyway when somebody asks for them."""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evenload.scorer.app import ScorerApp

_PREFIX = "evenload_scorer_"


class ScorerCollector(Collector):
    """Shows a `ScorerApp`.

    Attributes:
        lag: records that can be read and were not applied, per partition, as last asked of Kafka.
    """

    def __init__(self, app: ScorerApp) -> None:
        self._app = app
        self.lag: dict[int, int] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield all families; prometheus-client calls this."""
        counts, activity = self._app.counts, self._app.activity
        for name, text, value in (
            ("records", "Telemetry records applied.", counts.records),
            ("events", "Events applied.", counts.events),
            ("duplicates", "Events that a state included already.", counts.duplicates),
            ("missed", "Telemetry offsets that were never seen.", counts.missed),
            ("apply_seconds", "Time spent applying records.", activity.apply_s),
            ("rebalances", "Times that partitions were revoked.", activity.rebalances),
            ("recoveries", "Times that recovery completed.", activity.recoveries),
            ("rewound_records", "Records read again because the changelog lacked them.", activity.rewound),
            ("reseeks", "Times that Faust had lost its place in a partition.", activity.reseeks),
            ("overtaken_states", "State records older than one read before.", activity.overtaken),
            ("unreadable_states", "State records that could not be decoded.", activity.unreadable),
            ("snapshots", "Snapshots published.", activity.snapshots),
            ("snapshot_records", "Records of snapshots published.", activity.snapshot_records),
            ("checkpoints", "Checkpoints acknowledged.", activity.checkpoints),
            ("checkpoint_seconds", "Time spent waiting for checkpoints.", activity.checkpoint_s),
            ("states_written", "State records acknowledged.", activity.states_written),
            ("send_failures", "Records that Kafka did not take.", activity.send_failures),
        ):
            yield CounterMetricFamily(_PREFIX + name, text, value=value)
        dead = CounterMetricFamily(_PREFIX + "dead_letters", "Records that could not be applied.", labels=["reason"])
        for reason, count in counts.dead_letters.items():
            dead.add_metric([reason], count)
        yield dead
        yield from self._gauges()

    def _gauges(self) -> Iterator[Metric]:
        now_ms = time.monotonic() * 1000
        assigned = sorted(self._app.assigned.items())
        yield GaugeMetricFamily(_PREFIX + "partitions", "Partitions owned.", value=len(assigned))
        published = self._app.activity.published_ms
        for name, text, values in (
            ("lag_records", "Records not applied yet.", self.lag),
            ("instances", "Instances known.", {p: len(owned.scorer.states) for p, owned in assigned}),
            ("linger_ms", "Advised linger.", {p: owned.scorer.linger.linger_ms for p, owned in assigned}),
            ("position", "Offset of the last record applied.", {p: owned.scorer.position for p, owned in assigned}),
            ("durable", "Offset up to which the changelog is complete.", {p: o.scorer.durable for p, o in assigned}),
            ("snapshot_age_seconds", "Since snapshots were last published.", _ages(published, now_ms)),
        ):
            family = GaugeMetricFamily(_PREFIX + name, text, labels=["partition"])
            for partition, value in values.items():
                family.add_metric([str(partition)], value)
            yield family


def _ages(published_ms: dict[int, float], now_ms: float) -> dict[int, float]:
    return {partition: (now_ms - at_ms) / 1000 for partition, at_ms in published_ms.items()}


def registry_of(collector: ScorerCollector) -> CollectorRegistry:
    """Return a registry with nothing else in it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """Return all metrics in Prometheus' text format."""
    return generate_latest(registry)
