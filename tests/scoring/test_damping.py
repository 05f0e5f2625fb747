"""Warm-up damping: falls at once, rises at most 15 points a second however often one asks, starts at 30."""

import pytest

from evenload.schemas import EngineGauges, InstanceState, encode
from evenload.scoring import ScoringConfig, at, fresh, score, snapshot
from tests.scoring.steps import T0_MS, after, ms, outcome, score_at, warm


def test_a_never_seen_instance_starts_at_thirty_and_rises_by_fifteen_a_second() -> None:
    state = fresh("a", T0_MS)
    seen = [score_at(state, second) for second in range(7)]
    assert seen == pytest.approx([30, 45, 60, 75, 90, 100, 100])


def test_f33_an_instance_that_was_never_scraped_starts_there_too() -> None:
    state = after((0, EngineGauges(instance="a")))
    assert (score_at(state, 0), state.waiting, state.kv_usage) == (30.0, None, None)


@pytest.mark.parametrize("every_ms", [1, 7, 100, 999])
def test_asking_or_reporting_more_often_makes_nothing_rise_faster(every_ms: int) -> None:
    state = fresh("a", T0_MS)
    for log_ms in range(T0_MS, T0_MS + 2000, every_ms):
        state = after(((log_ms - T0_MS) / 1000, outcome("ok")), state=at(state, log_ms))
        assert score(state) <= 30 + 15 * (log_ms - T0_MS) / 1000 + 1e-9
    assert score_at(state, 2) == pytest.approx(60.0)


def test_the_score_falls_at_once_and_comes_back_at_fifteen_a_second() -> None:
    state = after((0, outcome("saturated")), state=warm())
    assert score_at(state, 0) == 60.0
    assert [score_at(state, second) for second in (3, 3.1, 4, 5, 6)] == pytest.approx([61.5, 63, 76.5, 91.5, 100])


def test_a_dip_within_one_tick_counts() -> None:
    full = EngineGauges(instance="a", waiting=30)
    empty = EngineGauges(instance="a", waiting=0)
    state = after((0.01, full), (0.02, empty), state=warm())
    assert score_at(state, 0.02) == 75.0
    assert score_at(state, 0.2) == 78.0


def test_rising_stops_at_the_raw_score() -> None:
    state = after(*[(0, outcome("timeout")), (0, outcome("ok"))] * 5)
    assert [score_at(state, second) for second in (1, 2, 3, 9.9)] == pytest.approx([45, 60, 60, 60])


def test_rate_and_start_belong_to_the_pool() -> None:
    config = ScoringConfig(damping_per_s=50.0, warmup_score=0.0)
    state = fresh("a", T0_MS, config)
    assert [score_at(state, second, config) for second in (0, 1, 2, 3)] == [0, 50, 100, 100]


def test_everything_within_a_tick_is_the_same_snapshot() -> None:
    state = after((0, outcome("saturated")), (0.05, outcome("ok")))
    assert encode(snapshot(state, ms(1.2))) == encode(snapshot(state, ms(1.299)))
    assert encode(snapshot(state, ms(1.2))) != encode(snapshot(state, ms(1.3)))


def test_a_snapshot_of_the_past_is_one_of_the_latest_log_time() -> None:
    state = after((5, outcome("ok")))
    assert encode(snapshot(state, 0)) == encode(snapshot(state, ms(5)))


def test_a_state_that_was_read_ahead_of_its_log_takes_events_in_its_own_second() -> None:
    ahead = at(fresh("a", T0_MS), ms(7))
    state = after((0.5, outcome("timeout")), state=ahead)
    assert state.err[ms(7) // 1000 % 10] == 1
    assert at(state, ms(16.9)).err_sum == 1


def test_the_snapshot_says_how_the_score_came_about() -> None:
    gauges = EngineGauges(instance="a", waiting=15, kv_usage=0.5)
    state: InstanceState = after((0, gauges), *[(0, outcome("ok"))] * 9, (0, outcome("timeout")), state=warm())
    seen = snapshot(state, ms(0))
    assert (seen.ttft, seen.error, seen.queue) == (0.0, 0.5, 0.5)
    assert seen.raw == seen.score == pytest.approx(67.5)
    assert (seen.state.watermarks, seen.state.loads) == ({}, {})
