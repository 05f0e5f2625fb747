"""The least time between two snapshots of an instance grows until a partition keeps its budget."""

import pytest

from evenload.scorer.pace import FlushPace


def settled(instances: int, flush_ms: float = 25.0) -> FlushPace:
    """Let that many instances be published whenever the pace permits it, for 20 s."""
    pace = FlushPace(flush_ms, target_per_s=400)
    for second in range(20):
        pace.update(second * 1000.0)
        pace.published(round(instances * 1000 / pace.interval_ms))
    return pace


def test_few_instances_are_published_as_often_as_they_change() -> None:
    assert settled(5).interval_ms == 25.0


def test_more_instances_share_the_budget() -> None:
    assert settled(20).interval_ms == pytest.approx(50.0, rel=0.05)


def test_no_instance_waits_longer_than_four_intervals() -> None:
    assert settled(1_000).interval_ms == 100.0


def test_the_pace_is_taken_up_again_when_the_flood_is_over() -> None:
    pace = settled(1_000)
    for second in range(20, 25):
        pace.update(second * 1000.0)
    assert pace.interval_ms == 25.0
