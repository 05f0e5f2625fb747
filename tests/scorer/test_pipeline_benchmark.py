"""The benchmark of the pipeline runs, tiny, so that it does not rot; its figures are for people."""

from pathlib import Path

import pytest

from benchmarks.pipeline import auditing, bench, emitter_cpu, fleet, freshness, machine, scaling
from benchmarks.pipeline.stack import Kafka

pytestmark = pytest.mark.kafka


@pytest.fixture
def where(bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    monkeypatch.setattr(machine, "wait_until_quiet", lambda: 0.0)  # other tests may run beside this one
    return Kafka(bootstrap, tmp_path)


def test_freshness_follows_events_and_probes_from_the_emitter_to_the_view(where: Kafka) -> None:
    (row,) = freshness.measure(where, 1, producers=(2,), seconds=1.0, warmup_s=1.0, tries=0).values()
    assert 0 < row["acked_p50"] <= row["covered_p50"] <= row["covered_p99"] < 60_000
    assert row["probe_p50"] > 0
    assert row["shown_p50"] > 0


def test_instances_are_recovered_by_a_restarted_scorer_and_a_new_router(where: Kafka) -> None:
    (row,) = fleet.measure(where, 1, sizes=(16,), session_timeout_s=3).values()
    assert row["rss_mb"] > 10
    assert 0 < row["restart_s"] < 60
    assert 0 < row["view_s"] < 30
    assert 0 < row["router_s"] < 60


def test_the_emitter_costs_something(where: Kafka) -> None:
    (row,) = emitter_cpu.measure(where, 1, rates=(500,), linger_ms=(20,), seconds=0.5).values()
    assert row["add_us"] > 0
    assert row["events_per_record"] > 1


def test_the_log_that_is_made_for_the_audit_verifies(where: Kafka) -> None:
    (row,) = auditing.measure(where, events=2_000).values()
    assert row["events"] == 2_000
    assert row["snapshots"] > 0


def test_what_a_fleet_needs_grows_with_routers_and_instances() -> None:
    small, large = scaling.needs(10, 100), scaling.needs(100, 1000)
    # Ten times the routers read the snapshots of ten times the instances, which are published a little less often.
    assert 50 * small.egress_bytes < large.egress_bytes < 100 * small.egress_bytes
    assert large.scorer_cores > small.scorer_cores


def test_the_table_shows_medians_with_their_extremes(capsys: pytest.CaptureFixture[str]) -> None:
    bench.print_table("what", {"case": machine.middle([{"x_ms": 1.0}, {"x_ms": 3.0}, {"x_ms": 2.0}])}, 0.5)
    assert "2 (1..3)" in capsys.readouterr().out
