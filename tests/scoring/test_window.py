"""The sliding window of ten one-second buckets: successes and instance-caused errors only."""

import pytest

from evenload.scoring import at
from tests.scoring.steps import NEVER_DAMPED, after, ms, outcome, score_at, warm

INSTANCE_CAUSED = ["http_error", "stream_error", "upstream_cut", "connect_error", "timeout"]
NOT_ITS_FAULT = ["rejected", "client_gone"]


@pytest.mark.parametrize("kind", INSTANCE_CAUSED)
def test_each_kind_of_the_instances_own_failures_counts(kind: str) -> None:
    state = after(*[(0, outcome("ok"))] * 9, (0, outcome(kind)), config=NEVER_DAMPED)
    assert (state.err_sum, state.ok_sum, state.errors, state.successes) == (1, 9, 1, 9)
    assert score_at(state, 0, NEVER_DAMPED) == pytest.approx(80.0)
    assert state.cause == kind


@pytest.mark.parametrize("kind", NOT_ITS_FAULT)
def test_f20_f24_rejections_and_lost_clients_change_no_score_and_no_cooling(kind: str) -> None:
    before = after(*[(0, outcome("ok"))] * 9, (0, outcome("http_error")), config=NEVER_DAMPED)
    events = [(0.0, outcome(kind, status=status)) for status in (0, 400, 401, 403, 404, 408, 422, 499)] * 50
    state = after(*events, state=before, config=NEVER_DAMPED)
    assert score_at(state, 0, NEVER_DAMPED) == score_at(before, 0, NEVER_DAMPED) == pytest.approx(80.0)
    assert (state.ok_sum, state.err_sum, state.cooling_until_ms, state.neutral) == (9, 1, 0, 400)


def test_without_outcomes_there_are_no_errors() -> None:
    assert score_at(after(config=NEVER_DAMPED), 0, NEVER_DAMPED) == 100.0


def test_errors_leave_the_window_second_by_second() -> None:
    # one error and no success in each of 10 seconds: then one second less in each of the next ten
    state = after(*[(second + 0.5, outcome("timeout")) for second in range(10)])
    assert state.err == [1] * 10
    left = [at(state, ms(second)).err_sum for second in range(9, 21)]
    assert left == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]


def test_an_outcome_counts_for_nine_to_ten_seconds() -> None:
    early, late = after((0.0, outcome("timeout"))), after((0.999, outcome("timeout")))
    for state in (early, late):
        assert at(state, ms(9.999)).err_sum == 1
        assert at(state, ms(10.0)).err_sum == 0


def test_the_ratio_follows_what_is_left_in_the_window() -> None:
    state = after(
        *[(0, outcome("http_error"))] * 2, *[(0, outcome("ok"))] * 8, *[(5, outcome("ok"))] * 30, config=NEVER_DAMPED
    )
    assert score_at(state, 5.1, NEVER_DAMPED) == pytest.approx(100 - 40 * 5 * 2 / 40)
    assert score_at(state, 9.9, NEVER_DAMPED) == pytest.approx(90.0)
    assert score_at(state, 10, NEVER_DAMPED) == 100.0


def test_one_error_among_ten_thousand_costs_little_and_ten_in_ten_cost_no_more_than_two_in_ten() -> None:
    rare = after(*[(0, outcome("ok"))] * 9999, (0, outcome("timeout")), config=NEVER_DAMPED)
    assert score_at(rare, 0, NEVER_DAMPED) == pytest.approx(99.98)
    always_failing = after(*[(0, outcome("timeout"))] * 10, config=NEVER_DAMPED)
    often = after(*[(0, outcome("ok"))] * 8, *[(0, outcome("timeout"))] * 2, config=NEVER_DAMPED)
    assert score_at(always_failing, 0, NEVER_DAMPED) == score_at(often, 0, NEVER_DAMPED) == pytest.approx(60.0)


def test_a_first_failure_convicts_until_successes_outvote_it() -> None:
    # The ratio of one failure and nothing else is 1, and the score falls at once, also within one record.
    state = after((0, outcome("timeout")), *[(0, outcome("ok"))] * 99, state=warm())
    assert [score_at(state, seconds) for seconds in (0, 1, 2, 3)] == pytest.approx([60, 75, 90, 98])


def test_an_hour_of_silence_empties_the_window_at_once() -> None:
    state = at(after(*[(0, outcome("timeout"))] * 5), ms(3600))
    assert (state.err, state.err_sum, state.errors) == ([0] * 10, 0, 5)


def test_log_time_that_goes_backwards_counts_at_the_latest_time() -> None:
    state = after((8, outcome("ok")), (2, outcome("timeout")))
    assert state.log_ms == ms(8)
    assert at(state, ms(17.9)).err_sum == 1
    assert at(state, ms(18)).err_sum == 0
