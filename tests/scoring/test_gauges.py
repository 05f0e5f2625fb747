"""What an engine says of itself: absent is unknown, old is unknown."""

import pytest

from evenload.schemas import EngineGauges
from evenload.scoring import ScoringConfig
from tests.scoring.steps import NEVER_DAMPED, after, score_at, warm


def gauges(**fields: float) -> EngineGauges:
    return EngineGauges(instance="a", **fields)  # type: ignore[arg-type]  # counts and shares


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 100.0),
        ({"waiting": 15}, 87.5),
        ({"waiting": 300}, 75.0),
        ({"kv_usage": 0.9}, 87.5),
        ({"waiting": 27, "kv_usage": 0.9}, 77.5),
        ({"running": 400}, 100.0),
    ],
)
def test_the_queue_term_reads_what_is_there(fields: dict[str, float], expected: float) -> None:
    assert score_at(after((0, gauges(**fields)), state=warm()), 0) == pytest.approx(expected)


def test_a_gauge_that_is_no_longer_reported_is_unknown_rather_than_what_it_was() -> None:
    state = after((0, gauges(waiting=30, kv_usage=0.9)), (1, gauges(kv_usage=0.9)), config=NEVER_DAMPED)
    assert state.waiting is None
    assert score_at(state, 1.1, NEVER_DAMPED) == pytest.approx(87.5)


def test_gauges_are_unknown_after_ten_seconds_without_news() -> None:
    state = after((0, gauges(waiting=30)), config=NEVER_DAMPED)
    assert score_at(state, 9.9, NEVER_DAMPED) == 75.0
    assert score_at(state, 10, NEVER_DAMPED) == 100.0


def test_the_expiry_belongs_to_the_pool() -> None:
    config = ScoringConfig(warmup_score=100.0, damping_per_s=1000.0, gauges_expire_ms=2000)
    state = after((0, gauges(waiting=30)), config=config)
    assert (score_at(state, 1.9, config), score_at(state, 2, config)) == (75.0, 100.0)
