"""The router's Prometheus metrics: labels come from the configuration only, so the number of series is fixed."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evenload.api.keys import ClientKeys
from evenload.router.admission import Gate
from evenload.router.counts import Counts, Histograms
from evenload.router.held_bodies import HeldBodies
from evenload.router.pool import Pool
from evenload.schemas import Outcome

TTFT_BUCKETS_S = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0)
DURATION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class RouterMetrics:
    """Counters and histograms of the hot path; gauges are set when the page is read."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        where = ("pool", "instance")
        self._choices = Counts(
            "evenload_router_choices", "Attempts dispatched, by reason of the choice.", (*where, "reason")
        )
        self._outcomes = Counts(
            "evenload_router_attempts", "Attempts ended, by model and outcome.", (*where, "model", "outcome")
        )
        self._failures = Counts(
            "evenload_router_failures",
            "Attempts that were not answered well, by outcome and cause.",
            (*where, "outcome", "cause"),
        )
        self._ttft = Histograms(
            "evenload_router_ttft_seconds", "Time to first content token of an attempt.", where, TTFT_BUCKETS_S
        )
        self._duration = Histograms(
            "evenload_router_attempt_seconds", "Duration of an attempt.", where, DURATION_BUCKETS_S
        )
        self._by_instance = (self._choices, self._outcomes, self._failures, self._ttft, self._duration)
        for collector in self._by_instance:
            self.registry.register(collector)
        self.in_flight = Gauge("evenload_router_in_flight", "Own requests under way.", where, registry=self.registry)
        self.score = Gauge(
            "evenload_router_score", "Health score in this router's view.", where, registry=self.registry
        )
        self.snapshot_age = Gauge(
            "evenload_router_snapshot_age_seconds",
            "Age of the stalest partition's newest snapshot (-1: none yet).",
            registry=self.registry,
        )
        self.telemetry = Gauge(
            "evenload_router_telemetry",
            "Telemetry events and batches, by what became of them.",
            ("state",),
            registry=self.registry,
        )
        self.token_error = Gauge(
            "evenload_router_token_estimate_error",
            "Smoothed relative error of prompt token estimates.",
            ("pool",),
            registry=self.registry,
        )
        self.retries_withheld = Gauge(
            "evenload_router_retries_withheld",
            "Retries that the budget of the pool refused.",
            ("pool",),
            registry=self.registry,
        )

        self._reloads = Counter(
            "evenload_router_reloads", "Reloads of the settings, by result.", ("result",), registry=self.registry
        )
        self._reload_failed = Gauge(
            "evenload_router_reload_failed", "1 if the last reload failed and changed nothing.", registry=self.registry
        )
        for result in ("ok", "failed"):
            self._reloads.labels(result)

    def watch_pools(
        self,
        own: Callable[[], Gate | None],
        pools: Callable[[], Mapping[str, Pool]],
        bodies: Callable[[], HeldBodies],
    ) -> None:
        """Show gates and homes by pool, as they are when the page is read; the router's own gate has an empty name."""
        gates = lambda: {"": own()} | {name: pool.gate for name, pool in pools().items()}  # noqa: E731
        self.registry.register(_Gates(gates, bodies))
        self.registry.register(_Homes(pools))

    def watch_keys(self, keys: Callable[[], ClientKeys | None]) -> None:
        """Show what became of requests by client key."""
        self.registry.register(_Keys(keys))

    def reloaded(self, *, ok: bool) -> None:
        """One more reload of the settings."""
        self._reloads.labels("ok" if ok else "failed").inc()
        self._reload_failed.set(not ok)

    def chosen(self, pool: str, instance: str, reason: str) -> None:
        """One more choice."""
        self._choices.add((pool, instance, reason))

    def first_token(self, pool: str, instance: str, ttft_ms: float) -> None:
        """One more first token."""
        self._ttft.add((pool, instance), ttft_ms / 1000.0)

    def forget(self, pool: str, instance: str) -> None:
        """Drop the series of an instance that is no longer in the settings."""
        labels = {"pool": pool, "instance": instance}
        for metric in (*self._by_instance, self.in_flight, self.score):
            metric.remove_by_labels(labels)

    def ended(self, pool: str, model: str, instance: str, outcome: Outcome) -> None:
        """One more attempt ended."""
        self._outcomes.add((pool, instance, model, outcome.kind))
        self._duration.add((pool, instance), outcome.duration_ms / 1000.0)
        if outcome.kind != "ok":
            self._failures.add((pool, instance, outcome.kind, outcome.cause))


class _Gates(Collector):
    """Reads the gates and what is held of bodies when the page is read: the hot path only counts in them."""

    def __init__(self, gates: Callable[[], Mapping[str, Gate | None]], bodies: Callable[[], HeldBodies]) -> None:
        self._gates = gates
        self._bodies = bodies

    def collect(self) -> Iterator[Metric]:
        """Yield in use, queued, shed, and bytes held."""
        bodies = self._bodies()
        in_use = GaugeMetricFamily(
            "evenload_router_admission_in_use", "Requests that were let in and are under way.", labels=("pool",)
        )
        queued = GaugeMetricFamily("evenload_router_admission_queued", "Requests that wait.", labels=("pool",))
        shed = CounterMetricFamily(
            "evenload_router_admission_shed", "Requests that were refused, by cause.", labels=("pool", "cause")
        )
        for pool, gate in self._gates().items():
            if gate is not None:
                in_use.add_metric((pool,), gate.in_use)
                queued.add_metric((pool,), gate.queued)
                for cause, count in gate.shed.items():
                    shed.add_metric((pool, cause), count)
        shed.add_metric(("", "held_bytes"), bodies.shed)
        held = GaugeMetricFamily("evenload_router_held_body_bytes", "Bytes of request bodies that are held.")
        held.add_metric((), bodies.bytes_held)
        yield from (in_use, queued, shed, held)


class _Homes(Collector):
    """Reads what became of beginnings when the page is read."""

    def __init__(self, pools: Callable[[], Mapping[str, Pool]]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        """Yield requests by whether they were to go home, or why not."""
        found = CounterMetricFamily(
            "evenload_router_beginnings",
            "Requests whose prompt has a beginning: to go home, or why not.",
            labels=("pool", "outcome"),
        )
        for name, pool in self._pools().items():
            if pool.homes is not None:
                for outcome, count in pool.homes.outcomes.items():
                    found.add_metric((name, outcome), count)
        yield found


class _Keys(Collector):
    """Reads the keys' own counts; their names are from the file, so the series are as many as its lines."""

    def __init__(self, keys: Callable[[], ClientKeys | None]) -> None:
        self._keys = keys

    def collect(self) -> Iterator[Metric]:
        """Yield requests by key, and those without one."""
        keys = self._keys()
        if keys is None:
            return
        requests = CounterMetricFamily(
            "evenload_router_key_requests", "Requests by client key: let pass, or over its rate.", labels=("key", "end")
        )
        for key in keys.keys:
            requests.add_metric((key.name, "passed"), key.taken)
            requests.add_metric((key.name, "rate_limited"), key.limited)
        unknown = CounterMetricFamily("evenload_router_unauthorized", "Requests without a key that is known.")
        unknown.add_metric((), keys.unknown)
        yield from (requests, unknown)
