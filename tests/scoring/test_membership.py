"""Instances that join, restart, drain, leave and return."""

from typing import Any

import pytest

from evenload.schemas import EngineGauges, Event, FirstToken, InstanceState, Membership
from evenload.scoring import at
from tests.scoring.steps import Step, after, batch, fold_all, ms, outcome, score_at, warm


def member(change: str, cause: str = "", gen: int = 0) -> Membership:
    return Membership(instance="a", change=change, cause=cause, gen=gen)  # type: ignore[arg-type]  # the wire's literals


def started(started_s: float, **fields: Any) -> EngineGauges:
    return EngineGauges(instance="a", started_s=started_s, **fields)


def busy() -> InstanceState:
    """A warm instance with history of every sort, score below 60 and cooling."""
    first = FirstToken(instance="a", ttft_ms=1000.0)
    failing: list[Event] = [outcome("timeout", cause="read_timeout"), outcome("saturated"), first]
    return after((0, started(5.0, waiting=3)), *[(0, event) for event in failing], state=warm())


def evidence_of(state: InstanceState) -> tuple[object, ...]:
    return state.ewma_ttft_ms, state.live_ttft_ms, state.ok_sum, state.err_sum, state.cooling_until_ms


def test_a_new_process_start_time_is_a_restart_and_starts_at_thirty_without_history() -> None:
    state = after((1, started(6.0)), state=busy())
    assert state.restarts == 1
    assert evidence_of(state) == (None, None, 0, 0, 0)
    assert [score_at(state, second) for second in (1, 2, 3)] == pytest.approx([30, 45, 60])


def test_the_same_or_a_missing_start_time_is_none() -> None:
    state = after((1, started(5.0)), (2, EngineGauges(instance="a")), (3, started(5.0)), state=busy())
    assert state.restarts == 0


def test_the_first_start_time_is_none_either() -> None:
    assert after((0, started(5.0)), state=warm()).restarts == 0


def test_a_restart_does_not_lift_a_score_that_was_lower() -> None:
    low = after((0, member("not_ready")), (1, member("ready")), state=warm())
    assert score_at(after((1, started(6.0)), (1, started(7.0)), state=low), 1) == 0.0


def test_counters_outlive_a_restart() -> None:
    state = after((1, started(6.0)), state=busy())
    assert (state.errors, state.saturations, state.first_tokens) == (1, 1, 1)


def test_f44_an_instance_that_is_not_ready_scores_zero_and_then_rises_from_there() -> None:
    state = after((0, member("not_ready", "loading")), state=warm())
    assert [score_at(state, second) for second in (0, 5, 3600)] == [0, 0, 0]
    state = after((5, member("ready")), state=state)
    assert [score_at(state, second) for second in (5, 6, 7)] == pytest.approx([0, 15, 30])


def test_not_ready_without_a_refused_connection_is_no_restart() -> None:
    state = after((1, member("not_ready", "loading")), (2, member("ready")), state=busy())
    assert (state.restarts, state.ready, state.cause) == (0, True, "")
    assert state.ewma_ttft_ms == 1000.0


def test_refused_and_then_ready_is_a_restart() -> None:
    state = after((1, member("not_ready", "refused")), (2, member("ready")), state=busy())
    assert state.restarts == 1
    assert evidence_of(state) == (None, None, 0, 0, 0)
    assert [score_at(state, second) for second in (2, 3, 4)] == pytest.approx([30, 45, 60]), "as one never seen"


def test_a_softer_reason_or_a_failed_request_does_not_hide_that_the_process_was_gone() -> None:
    steps: list[Step] = [
        (1, member("not_ready", "refused")),
        (2, member("not_ready", "loading")),
        (2, outcome("connect_error", cause="ECONNREFUSED")),
        (3, member("ready")),
    ]
    assert after(*steps, state=busy()).restarts == 1


def test_a_failed_request_does_not_make_a_slow_instance_look_restarted() -> None:
    steps: list[Step] = [
        (1, member("not_ready", "loading")),
        (2, outcome("connect_error", cause="refused")),
        (3, member("ready")),
    ]
    state = after(*steps, state=busy())
    assert (state.restarts, state.err_sum) == (0, 2)


def test_ready_twice_is_one_restart() -> None:
    steps: list[Step] = [(1, member("not_ready", "refused")), (2, member("ready")), (3, member("ready"))]
    assert after(*steps, state=busy()).restarts == 1


def test_draining_is_remembered_and_changes_no_score() -> None:
    state = after((0, member("draining")), state=warm())
    assert (state.draining, score_at(state, 0)) == (True, 100.0)
    assert not after((1, member("joined")), state=state).draining
    assert after((1, member("ready")), state=state).draining  # a probe knows nothing of it


def test_an_instance_that_left_scores_zero_and_keeps_a_grave() -> None:
    state = after((1, member("left")), state=warm())
    assert state.left_ms == ms(1)
    assert [score_at(state, second) for second in (1, 60, 3600)] == [0, 0, 0]


@pytest.mark.parametrize("event", [outcome("ok"), started(9.0), member("joined"), member("ready"), member("left")])
def test_after_leaving_events_of_the_same_generation_only_count(event: Event) -> None:
    grave = after((1, member("left")), state=warm())
    state = after((2, event), state=grave)
    assert state.older_generation == 1
    assert (state.left_ms, state.successes, state.started_s) == (ms(1), 0, None)
    assert score_at(state, 10) == 0.0


def test_rejoining_with_a_higher_generation_starts_at_thirty_with_a_clean_slate() -> None:
    grave = after((1, member("left")), state=busy())
    state = after((2, member("joined", gen=1)), state=grave)
    assert (state.generation, state.left_ms, state.errors, state.restarts) == (1, None, 0, 0)
    assert evidence_of(state) == (None, None, 0, 0, 0)
    assert [score_at(state, second) for second in (2, 3, 4)] == pytest.approx([30, 45, 60])


def test_any_event_of_a_higher_generation_starts_it_also_while_the_old_one_lives() -> None:
    state = after((1, FirstToken(instance="a", ttft_ms=200.0, gen=3)), state=busy())
    assert (state.generation, state.ewma_ttft_ms, state.first_tokens) == (3, 200.0, 1)
    assert score_at(state, 1) == 30.0


def test_late_events_of_an_older_generation_only_count() -> None:
    new = after((0, member("joined", gen=2)))
    late: list[Event] = [
        outcome("timeout", gen=1),
        member("left", gen=1),
        FirstToken(instance="a", ttft_ms=9000.0),
        EngineGauges(instance="a", gen=0, waiting=300),
        member("not_ready", gen=0),
    ]
    state = after(*[(0.0, event) for event in late], state=new)
    assert state.older_generation == 5
    assert (state.errors, state.left_ms, state.ewma_ttft_ms, state.waiting, state.ready) == (0, None, None, None, True)
    assert score_at(state, 10) == 100.0


def test_a_new_generation_keeps_what_identifies_the_log() -> None:
    states = fold_all([(0, ms(0), batch(outcome("ok"), incarnation=7, seq=4))])
    states = fold_all([(1, ms(1), batch(member("joined", gen=1), incarnation=8, seq=0))], states=states)
    assert (states["a"].watermarks, states["a"].as_of) == ({7: 4, 8: 0}, 1)
    again = fold_all([(2, ms(2), batch(outcome("ok", gen=1), incarnation=7, seq=4))], states=states)
    assert again == states


def test_a_generation_that_starts_on_a_state_read_ahead_keeps_its_second() -> None:
    ahead = at(warm(), ms(7))
    state = after((0.5, outcome("timeout", gen=1)), state=ahead)
    assert (state.window_s, at(state, ms(16.9)).err_sum) == (ms(7) // 1000, 1)


@pytest.mark.parametrize("gauges_first", [True, False])
def test_one_restart_counts_once_whoever_notices_it_first(gauges_first: bool) -> None:
    old, new = (EngineGauges(instance="a", started_s=at) for at in (100.0, 200.0))
    signs: list[Event] = [new, member("ready")] if gauges_first else [member("ready"), new]
    state = after((0, old), (10, member("not_ready", "refused")), *((20 + n, sign) for n, sign in enumerate(signs)))
    assert (state.restarts, state.ready) == (1, True)
