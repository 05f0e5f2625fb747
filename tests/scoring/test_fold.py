"""Telemetry records: dedupe, aged batches, loads per replica, bounds."""

import pytest

from evenload.schemas import Batch, Event, FirstToken, InstanceState, Membership, RouterLoad, encode
from evenload.scoring import DEFAULT, ScoringConfig, apply, fold, fresh, snapshot
from evenload.scoring.fold import PRODUCERS_MAX
from tests.scoring.steps import NEVER_DAMPED, T0_MS, Record, always, batch, fold_all, ms, outcome


def load(in_flight: int, awaiting: int = 0, instance: str = "a") -> RouterLoad:
    return RouterLoad(
        instance=instance,
        in_flight=in_flight,
        awaiting=awaiting,
        in_flight_tokens=100 * in_flight,
        awaiting_tokens=100 * awaiting,
    )


def sums(state: InstanceState, seconds: float) -> tuple[int, ...]:
    seen = snapshot(state, ms(seconds))
    return seen.replicas, seen.in_flight, seen.awaiting, seen.in_flight_tokens, seen.awaiting_tokens


# ---- dedupe

LOG: list[Record] = [
    (0, ms(0), batch(outcome("ok"), outcome("timeout"), FirstToken(instance="b", ttft_ms=90.0), seq=0)),
    (1, ms(0.2), batch(load(3), outcome("saturated"), incarnation=2, seq=0)),
    (4, ms(1.7), batch(Membership(instance="b", change="left"), seq=1)),
    (5, ms(1.6), batch(FirstToken(instance="a", ttft_ms=900.0), incarnation=2, seq=1)),
]


def test_folding_a_log_twice_equals_folding_it_once() -> None:
    once = fold_all(LOG)
    assert fold_all(LOG, states=once) == once
    assert fold_all(LOG + LOG) == once


def test_a_record_that_was_sent_again_at_a_new_offset_changes_nothing() -> None:
    once = fold_all(LOG)
    again: list[Record] = [(offset + 100, log_ms + 60_000, record) for offset, log_ms, record in LOG]
    for record in again:
        assert fold(once, record[2], record[0], record[1], always()) == {}


def test_the_same_sequence_of_another_producer_is_another_record() -> None:
    states = fold_all([(0, ms(0), batch(outcome("ok"))), (1, ms(0), batch(outcome("ok"), incarnation=2))])
    assert states["a"].successes == 2


def test_sequences_may_have_gaps_since_a_producer_has_one_per_partition_not_per_instance() -> None:
    states = fold_all([(0, ms(0), batch(outcome("ok"), seq=3)), (1, ms(0), batch(outcome("ok"), seq=900))])
    assert (states["a"].successes, states["a"].watermarks) == (2, {1: 900})


def test_a_record_counts_for_the_instances_that_have_not_seen_it() -> None:
    both = batch(outcome("ok"), FirstToken(instance="b", ttft_ms=90.0), seq=5)
    seen = {"a": fold_all([(7, ms(0), both)])["a"]}
    assert set(fold(seen, both, 7, ms(0), always())) == {"b"}


def test_only_the_states_that_change_are_returned_and_they_say_up_to_where_they_are_true() -> None:
    states = fold_all(LOG)
    changed = fold(states, batch(outcome("ok"), seq=2), 9, ms(3), always())
    assert set(changed) == {"a"}
    assert (changed["a"].as_of, states["a"].as_of, states["b"].as_of) == (9, 5, 4)


def test_an_empty_record_changes_nothing() -> None:
    assert fold({}, batch(), 0, ms(0), always()) == {}


def test_events_of_one_record_apply_in_order_to_one_copy() -> None:
    events: list[Event] = [FirstToken(instance="a", ttft_ms=1000.0), FirstToken(instance="a", ttft_ms=2000.0)]
    assert fold_all([(0, ms(0), batch(*events))])["a"].ewma_ttft_ms == pytest.approx(1200.0)
    assert fold_all([(0, ms(0), batch(*events[::-1]))])["a"].ewma_ttft_ms == pytest.approx(1800.0)


def test_each_instance_is_folded_with_the_config_of_its_pool() -> None:
    configs = {"a": DEFAULT, "b": ScoringConfig(ewma_alpha=1.0, warmup_score=10.0)}
    events = [FirstToken(instance=name, ttft_ms=ttft_ms) for ttft_ms in (1000.0, 2000.0) for name in "ab"]
    states = fold({}, batch(*events), 0, ms(0), configs.__getitem__)
    assert [states[name].ewma_ttft_ms for name in "ab"] == pytest.approx([1200.0, 2000.0])
    assert [states[name].damped for name in "ab"] == [30.0, 10.0]


# ---- aged batches

AGED: list[Event] = [
    outcome("timeout"),
    outcome("saturated"),
    FirstToken(instance="a", ttft_ms=9000.0),
    load(7),
]


def test_events_older_than_ten_seconds_change_counters_only() -> None:
    before = fold_all([(0, ms(0), batch(outcome("ok")))], NEVER_DAMPED)
    after = fold_all([(1, ms(0), batch(*AGED, seq=1, age_ms=10_001.0))], NEVER_DAMPED, before)["a"]
    assert after.aged == 4
    # nothing but the counter and the place in the log differs
    after.aged, after.as_of, after.watermarks = 0, before["a"].as_of, before["a"].watermarks
    assert after == before["a"]


def test_an_old_event_of_a_newer_generation_counts_and_starts_nothing_but_a_membership_does() -> None:
    before = fold_all([(0, ms(0), batch(outcome("ok")))], NEVER_DAMPED)
    late = batch(FirstToken(instance="a", ttft_ms=9000.0, gen=1), seq=1, age_ms=10_001.0)
    after = fold_all([(1, ms(0), late)], NEVER_DAMPED, before)["a"]
    assert (after.generation, after.aged, after.successes) == (0, 1, 1)
    joined = batch(Membership(instance="a", change="joined", gen=1), seq=2, age_ms=99_999.0)
    assert fold_all([(2, ms(0), joined)], NEVER_DAMPED, {"a": after})["a"].generation == 1


def test_exactly_ten_seconds_is_not_aged() -> None:
    state = fold_all([(0, ms(0), batch(*AGED, age_ms=10_000.0))])["a"]
    assert (state.aged, state.errors, state.saturations, state.first_tokens) == (0, 1, 1, 1)


def test_the_age_of_an_event_is_the_batchs_less_the_time_since_the_batch_opened() -> None:
    young = FirstToken(instance="a", ttft_ms=100.0, at=500)
    old = FirstToken(instance="a", ttft_ms=9000.0, at=499)
    state = fold_all([(0, ms(0), batch(old, young, age_ms=10_499.5))])["a"]
    assert (state.aged, state.ewma_ttft_ms) == (1, 100.0)


def test_aged_events_are_recognised_when_sent_again() -> None:
    aged = batch(*AGED, age_ms=99_999.0)
    assert fold_all([(0, ms(0), aged), (1, ms(1), aged)])["a"].aged == 4


# ---- loads


def test_f42_loads_of_replicas_are_summed_and_never_overwrite_each_other() -> None:
    states = fold_all([(0, ms(0), batch(load(5, 2), incarnation=1)), (1, ms(0.1), batch(load(4, 1), incarnation=2))])
    assert sums(states["a"], 0.1) == (2, 9, 3, 900, 300)
    states = fold_all([(2, ms(0.2), batch(load(1, 0), incarnation=1, seq=1))], states=states)
    assert sums(states["a"], 0.2) == (2, 5, 1, 500, 100)


def test_reports_in_any_order_of_replicas_sum_to_the_same() -> None:
    one: list[Record] = [(i, ms(0), batch(load(i), incarnation=i)) for i in range(1, 9)]
    other: list[Record] = [(i, ms(0), batch(load(9 - i), incarnation=9 - i)) for i in range(1, 9)]
    assert sums(fold_all(one)["a"], 0) == sums(fold_all(other)["a"], 0) == (8, 36, 0, 3600, 0)


def test_a_replicas_load_expires_three_seconds_after_its_last_report() -> None:
    states = fold_all([(0, ms(0), batch(load(5), incarnation=1)), (1, ms(2), batch(load(4), incarnation=2))])
    assert sums(states["a"], 2.9) == (2, 9, 0, 900, 0)
    assert sums(states["a"], 3.0) == (1, 4, 0, 400, 0)
    assert sums(states["a"], 5.0) == (0, 0, 0, 0, 0)


def test_an_expired_load_is_dropped_from_the_state_by_the_next_report() -> None:
    states = fold_all([(0, ms(0), batch(load(5), incarnation=1)), (1, ms(3), batch(load(4), incarnation=2))])
    assert set(states["a"].loads) == {2}


def test_a_report_of_zero_removes_the_replica() -> None:
    states = fold_all([(0, ms(0), batch(load(5))), (1, ms(0.5), batch(load(0), seq=1))])
    assert states["a"].loads == {}


def test_loads_do_not_change_the_score() -> None:
    assert (
        snapshot(fold_all([(0, ms(0), batch(load(500, 500)))], NEVER_DAMPED)["a"], ms(0), NEVER_DAMPED).score == 100.0
    )


# ---- bounds


def test_a_thousand_producers_leave_a_bounded_state_with_the_latest_of_them() -> None:
    records: list[Record] = [(i, ms(i / 1000), batch(load(1), incarnation=2**62 + i, seq=2**40)) for i in range(1000)]
    state = fold_all(records)["a"]
    latest = [2**62 + i for i in range(1000 - PRODUCERS_MAX, 1000)]
    assert PRODUCERS_MAX == 256
    assert list(state.watermarks) == list(state.loads) == latest
    assert len(encode(state)) < 32_000


def test_a_producer_that_stays_active_is_not_forgotten() -> None:
    records: list[Record] = []
    for i in range(1000):
        records.append((2 * i, ms(i / 1000), batch(load(1), incarnation=7, seq=i)))
        records.append((2 * i + 1, ms(i / 1000), batch(load(1), incarnation=1000 + i)))
    state = fold_all(records)["a"]
    assert state.watermarks[7] == state.successes + 999
    assert 7 in state.loads


def test_nothing_else_in_a_state_grows() -> None:
    state = fresh("a", T0_MS)
    sizes = set()
    for i in range(3000):
        state = apply(state, outcome("timeout" if i % 3 else "saturated", cause="c" * 64), T0_MS + 10 * i)
        if i % 500 == 499:
            sizes.add(len(encode(state)))
    assert max(sizes) < min(sizes) + 32  # a counter takes a byte or two more


# ---- purity


def test_apply_and_fold_leave_their_inputs_alone() -> None:
    states = fold_all(LOG)
    before = {name: encode(state) for name, state in states.items()}
    record: Batch = batch(outcome("timeout"), load(9), Membership(instance="b", change="joined", gen=4), seq=9)
    written = encode(record)
    fold(states, record, 10, ms(90), always())
    for event in record.events:
        apply(states[event.instance], event, ms(90))
    assert {name: encode(state) for name, state in states.items()} == before
    assert encode(record) == written
