"""Latency: the published EWMA by hand, and the EWMA in time by hand."""

import pytest

from evenload.schemas import FirstToken, Overdue
from evenload.scoring import ScoringConfig, at
from evenload.scoring.damping import ttft_estimate_ms
from tests.scoring.steps import T0_MS, after, ms, outcome, score_at, warm

CENSORED = ScoringConfig(evidence="censored")


def first(ttft_ms: float) -> FirstToken:
    return FirstToken(instance="a", ttft_ms=ttft_ms)


def overdue(age_ms: float) -> Overdue:
    return Overdue(instance="a", age_ms=age_ms)


def test_the_first_sample_initialises_and_each_further_one_moves_a_fifth_of_the_way() -> None:
    state = after((0, first(1000.0)))
    assert state.ewma_ttft_ms == 1000.0
    state = after((1, first(2000.0)), state=state)
    assert state.ewma_ttft_ms == pytest.approx(1200.0)
    state = after((2, first(200.0)), state=state)
    assert state.ewma_ttft_ms == pytest.approx(1000.0)
    state = after((3, first(0.0)), (4, first(0.0)), state=state)
    assert state.ewma_ttft_ms == pytest.approx(640.0)


def test_alpha_belongs_to_the_pool() -> None:
    state = after((0, first(1000.0)), (1, first(2000.0)), config=ScoringConfig(ewma_alpha=0.5))
    assert state.ewma_ttft_ms == 1500.0


def test_time_does_not_move_the_published_ewma() -> None:
    state = after((0, first(1500.0)))
    assert at(state, ms(3600)).ewma_ttft_ms == 1500.0


def test_the_ttft_of_an_outcome_is_not_a_second_sample() -> None:
    state = after((0, first(1000.0)), (1, outcome("ok", ttft_ms=9000.0, duration_ms=9000.0)))
    assert state.ewma_ttft_ms == 1000.0


def test_overdue_requests_do_not_move_the_published_score() -> None:
    state = after((1, overdue(16_000.0)), state=warm())
    assert (score_at(state, 1), state.overdue) == (100.0, 1)


def test_overdue_requests_lower_the_censored_score_before_any_token_came() -> None:
    state = after((1, overdue(1000.0)), state=warm(CENSORED), config=CENSORED)
    assert score_at(state, 1, CENSORED) == pytest.approx(91.25)


def test_the_estimate_in_time_by_hand() -> None:
    config = CENSORED  # 300 ms upwards, 10 s downwards, at least 20 ms for a sample
    state = after((0, first(1000.0)), config=config)
    assert state.live_ttft_ms == 1000.0
    # 600 ms later it has faded to 1000 * 10 / 10.6; a slower sample pulls with 600 / (300 + 600)
    faded = 1000.0 * 10_000 / 10_600
    state = after((0.6, first(2000.0)), state=state, config=config)
    assert state.live_ttft_ms == pytest.approx(faded + (2000.0 - faded) * 600 / 900)
    # at the same moment a faster one pulls with 20 / (10,000 + 20)
    slow = state.live_ttft_ms
    assert slow is not None
    state = after((0.6, first(0.0)), state=state, config=config)
    assert state.live_ttft_ms == pytest.approx(slow * (1 - 20 / 10_020))


def test_the_estimate_in_time_fades_by_half_in_one_time_constant_and_is_unknown_at_last() -> None:
    state = after((0, first(1000.0)), config=CENSORED)
    assert ttft_estimate_ms(state, ms(10), CENSORED) == 500.0
    assert ttft_estimate_ms(state, ms(59.999), CENSORED) is not None
    assert ttft_estimate_ms(state, ms(60), CENSORED) is None
    assert state.live_ttft_ms == 1000.0


def test_an_overdue_request_is_a_lower_bound_and_raises_only() -> None:
    state = after((0, first(1000.0)), (0, overdue(250.0)), config=CENSORED)
    assert state.live_ttft_ms == 1000.0
    state = after((0, overdue(4000.0)), state=state, config=CENSORED)
    assert state.live_ttft_ms == pytest.approx(1000.0 + 3000.0 * 20 / 320)


def test_a_slower_sample_never_leads_to_a_better_estimate_later() -> None:
    # Once an overdue request that raised nothing left the time of the last evidence as it was: of these two, the one
    # with the slower first sample then gave the fast sample 17 times the weight, and ended lower.
    def estimate(first_ms: float) -> float:
        steps = ((0.0, first(first_ms)), (5.0, overdue(700.0)), (5.001, first(10.0)))
        value = after(*steps, config=CENSORED).live_ttft_ms
        assert value is not None
        return value

    assert estimate(1035.0) < estimate(1060.0)


def test_both_estimates_are_kept_whatever_the_config_reads() -> None:
    state = after((0, first(1000.0)), (1, first(2000.0)))
    assert state.ewma_ttft_ms == pytest.approx(1200.0)
    assert (state.live_at_ms, state.first_tokens) == (T0_MS + 1000, 2)
    assert state.live_ttft_ms is not None
