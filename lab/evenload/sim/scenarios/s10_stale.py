"""S10: old, stalled, duplicated, unordered and skewed telemetry: never worse than local least-awaiting."""

from dataclasses import replace

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Scenario, TelemetryPath, engines

_BASE = Scenario(
    name="s10-base",
    family="S10",
    shows="telemetry as usual, 85 %",
    fleet=engines("h100-8b", 8),
    workload=Workload(trace="azure-conv", utilisation=0.85),
)


def _with(name: str, shows: str, telemetry: TelemetryPath) -> Scenario:
    return replace(_BASE, name=f"s10-{name}", shows=shows, telemetry=telemetry)


def _stale(gauge_ms: float, delay: float) -> TelemetryPath:
    """Everything on the path is `delay` times as slow, and gauges come every `gauge_ms`."""
    return TelemetryPath(
        gauge_interval_ms=gauge_ms,
        event_p50_ms=30.0 * delay,
        event_p99_ms=150.0 * delay,
        snapshot_p50_ms=10.0 * delay,
        snapshot_p99_ms=50.0 * delay,
        flush_ms=25.0 * delay,
    )


SCENARIOS = (
    _with("stale-50", "gauges every 50 ms", TelemetryPath(gauge_interval_ms=50.0)),
    _with("stale-250", "gauges every 250 ms, as usual", TelemetryPath()),
    _with("stale-1000", "gauges every second, events 4 times as late", _stale(1000.0, 4.0)),
    _with("stale-5000", "gauges every 5 s, events 20 times as late", _stale(5000.0, 20.0)),
    _with("stall", "nothing passes for 10 s", TelemetryPath(stalls_ms=((60e3, 70e3), (110e3, 120e3)))),
    _with(
        "disorder",
        "a fifth of the batches twice, very uneven delays",
        TelemetryPath(duplicate_share=0.2, event_p50_ms=30.0, event_p99_ms=1500.0),
    ),
    _with("skew", "the brokers' clocks differ by 500 ms", TelemetryPath(skew_ms=500.0)),
)
