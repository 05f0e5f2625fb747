"""The collector's own metrics, read off the live objects when Prometheus asks."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as MetricSource

from evenload.bus.emitter import Emitter
from evenload.collector.ingest import Ingest
from evenload.collector.peers import Peers
from evenload.collector.poller import Poller


class CollectorMetrics(MetricSource):
    """Polling per instance, and telemetry on its way to Kafka."""

    def __init__(
        self,
        pollers: Callable[[], Sequence[Poller]],
        emitter: Emitter,
        peers: Peers,
        ingest: Callable[[], Ingest | None] = lambda: None,
    ) -> None:
        self._ingest_now = ingest
        self._peers = peers
        self._all = pollers
        self._emitter = emitter

    @property
    def _pollers(self) -> Sequence[Poller]:
        return self._all()

    def collect(self) -> Iterator[Metric]:
        """Return all families."""
        yield from self._polling()
        yield from self._pages()
        yield from self._sharing()
        yield from self._telemetry()
        if (ingest := self._ingest_now()) is not None:
            yield from _reports(ingest)

    def _polling(self) -> Iterator[Metric]:
        by = ["instance"]
        polls = CounterMetricFamily("evenload_collector_polls", "Polls made.", labels=by)
        failed = CounterMetricFamily("evenload_collector_polls_failed", "Polls without a page.", labels=by)
        dropped = CounterMetricFamily("evenload_collector_values_dropped", "Impossible or repeated values.", labels=by)
        ready = GaugeMetricFamily("evenload_collector_instance_ready", "1 ready, 0 not ready.", labels=by)
        kind = GaugeMetricFamily("evenload_collector_engine_info", "1 for its kind of engine.", labels=[*by, "kind"])
        for poller in self._pollers:
            name = [poller.watch.instance]
            polls.add_metric(name, poller.polls)
            failed.add_metric(name, poller.failed)
            dropped.add_metric(name, poller.dropped)
            kind.add_metric([*name, poller.endpoint.kind], 1)
            if poller.watch.ready is not None:
                ready.add_metric(name, float(poller.watch.ready))
        yield from (polls, failed, dropped, ready, kind)

    def _pages(self) -> Iterator[Metric]:
        by = ["instance"]
        missing = GaugeMetricFamily(
            "evenload_collector_gauge_missing", "1 for each gauge that the page lacks.", labels=[*by, "gauge"]
        )
        vanished = GaugeMetricFamily(
            "evenload_collector_gauge_vanished",
            "1 for each gauge that the page had before and lacks now: alarm on it.",
            labels=[*by, "gauge"],
        )
        deferred = GaugeMetricFamily(
            "evenload_collector_engine_deferred", "Waiting requests that no capacity would help.", labels=by
        )
        rejections = CounterMetricFamily(
            "evenload_collector_engine_rejections",
            "Requests that the engine refused for its queue was full.",
            labels=by,
        )
        for watch in (poller.watch for poller in self._pollers):
            for gauge in watch.vanished:
                vanished.add_metric([watch.instance, gauge], 1)
            if (page := watch.page) is None:
                continue
            for gauge in page.missing:
                missing.add_metric([watch.instance, gauge], 1)
            if page.deferred is not None:
                deferred.add_metric([watch.instance], page.deferred)
            if page.rejections is not None:
                rejections.add_metric([watch.instance], page.rejections)
        yield from (missing, vanished, deferred, rejections)

    def _sharing(self) -> Iterator[Metric]:
        owned = sum(self._peers.owns(poller.watch.instance) for poller in self._pollers)
        yield GaugeMetricFamily("evenload_collector_instances_owned", "Instances that are its to poll.", value=owned)
        live = len(self._peers.live)
        yield GaugeMetricFamily("evenload_collector_collectors_live", "Collectors alive, itself included.", value=live)

    def _telemetry(self) -> Iterator[Metric]:
        emitter = self._emitter
        counters = {
            "events_sent": emitter.sent_events,
            "batches_sent": emitter.sent_batches,
            "events_lost": emitter.lost_events,
            "events_invalid": emitter.invalid_events,
            "kafka_failures": emitter.link.failures,
        }
        for name, value in counters.items():
            yield CounterMetricFamily(f"evenload_collector_{name}", "Telemetry to Kafka.", value=value)
        yield GaugeMetricFamily("evenload_collector_events_buffered", "Not acknowledged yet.", value=emitter.buffered)
        yield GaugeMetricFamily(
            "evenload_collector_oldest_unsent_ms",
            "Age of the oldest batch not acknowledged.",
            value=emitter.oldest_age_ms,
        )
        yield GaugeMetricFamily(
            "evenload_collector_kafka_connected", "1 while a producer is up.", value=float(emitter.link.connected)
        )


def _reports(ingest: Ingest) -> Iterator[Metric]:
    reports = CounterMetricFamily("evenload_collector_reports", "Reports of others, by answer.", labels=["answer"])
    for answer, count in ingest.counts.items():
        reports.add_metric([answer], count)
    events = CounterMetricFamily("evenload_collector_reported_events", "Events in reports that were written.")
    events.add_metric([], ingest.events)
    yield from (reports, events)
