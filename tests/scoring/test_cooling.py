"""Typed 429 and 503: a saturated instance cools for seconds and is not called faulty."""

import pytest

from evenload.scoring import ScoringConfig
from evenload.scoring.cooling import cooling_left_ms
from tests.scoring.steps import NEVER_DAMPED, Step, after, ms, outcome, score_at


def cooled_s(*steps: Step, config: ScoringConfig = NEVER_DAMPED) -> float:
    """For how long the instance cools after the last step, in seconds."""
    state = after(*steps, config=config)
    return cooling_left_ms(state, state.log_ms) / 1000


def saturated(**fields: float) -> Step:
    return 0.0, outcome("saturated", status=503, **fields)


def later(seconds: float, **fields: float) -> Step:
    return seconds, outcome("saturated", status=503, **fields)


def test_the_error_term_is_one_for_three_seconds_and_then_gone() -> None:
    state = after(saturated(), config=NEVER_DAMPED)
    assert score_at(state, 0, NEVER_DAMPED) == 60.0
    assert score_at(state, 2.9, NEVER_DAMPED) == 60.0
    assert score_at(state, 3.0, NEVER_DAMPED) == 100.0
    assert cooling_left_ms(state, ms(2)) == 1000
    assert cooling_left_ms(state, ms(4)) == 0


def test_a_saturation_never_enters_the_error_window() -> None:
    state = after(*[saturated()] * 100, config=NEVER_DAMPED)
    assert (state.err_sum, state.ok_sum, state.errors, state.saturations) == (0, 0, 0, 100)
    assert state.cause == ""
    assert state.cooling_cause == "saturated"


def test_saturating_again_soon_after_cools_for_four_and_then_five_seconds_and_never_longer() -> None:
    assert cooled_s(saturated()) == 3
    assert cooled_s(saturated(), later(4)) == 4
    assert cooled_s(saturated(), later(4), later(9)) == 5
    assert cooled_s(saturated(), later(4), later(9), later(15), later(21), later(27)) == 5


def test_quiet_for_five_seconds_after_a_cooling_starts_over() -> None:
    assert cooled_s(saturated(), later(7.9)) == 4
    assert cooled_s(saturated(), later(8.0)) == 3


def test_saturations_during_a_cooling_are_one_episode_and_keep_it_going() -> None:
    steps = [later(tenth / 10) for tenth in range(30)]
    assert cooled_s(*steps) == 3
    assert after(*steps).cooling_hits == 1


def test_retry_after_is_honoured_when_it_is_longer_or_shorter() -> None:
    assert cooled_s(saturated(retry_after_ms=20_000.0)) == 20
    assert cooled_s(saturated(retry_after_ms=500.0)) == 0.5


def test_retry_after_is_believed_up_to_a_cap() -> None:
    assert cooled_s(saturated(retry_after_ms=3_600_000.0)) == 60


def test_a_shorter_retry_after_does_not_end_a_longer_cooling() -> None:
    assert cooled_s(saturated(retry_after_ms=20_000.0), later(1, retry_after_ms=100.0)) == 19


def test_a_provider_out_of_quota_cools_and_is_not_faulty() -> None:
    state = after((0, outcome("quota", status=429, cause="insufficient_quota")), config=NEVER_DAMPED)
    assert score_at(state, 0, NEVER_DAMPED) == 60.0
    assert (state.err_sum, state.saturations, state.cooling_cause) == (0, 1, "quota")


@pytest.mark.parametrize("kind", ["rejected", "client_gone", "ok", "http_error"])
def test_nothing_else_cools(kind: str) -> None:
    assert cooled_s((0, outcome(kind, status=429, retry_after_ms=9000.0))) == 0


def test_the_spans_belong_to_the_pool() -> None:
    config = ScoringConfig(cooling_ms=1000, cooling_step_ms=500, cooling_ms_max=2000, cooling_ms_cap=4000)
    assert cooled_s(saturated(), config=config) == 1
    assert cooled_s(saturated(), later(1.5), config=config) == 1.5
    assert cooled_s(saturated(), later(1.5), later(3.5), later(6), config=config) == 2
    assert cooled_s(saturated(retry_after_ms=9000.0), config=config) == 4
