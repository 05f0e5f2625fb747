"""What holds for any log, any config and both ways of reading evidence."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from evenload.schemas import Event, InstanceState, decode_batch, decode_state, encode
from evenload.scoring import ScoringConfig, apply, at, fold, fresh, score, snapshot
from tests.scoring.reference import advance_naively
from tests.scoring.steps import NEVER_DAMPED, T0_MS, Record, always, batch, fold_all, outcome
from tests.scoring.strategies import (
    HOUR_MS,
    any_config,
    extra_outcome,
    histories,
    logs,
    lone_configs,
    lone_states,
    moments,
    replaced,
    slower,
    worsened,
)

# Sums and products of doubles are monotone except for their last bits: new = old + alpha * (sample - old) may round a
# larger old one step lower.
ROUNDING = 1e-9


def scores_along(records: list[Record], config: ScoringConfig) -> list[dict[str, float]]:
    """The scores of all instances after each record: at its time, a little later and much later."""
    states: dict[str, InstanceState] = {}
    seen = []
    for record in records:
        states = fold_all([record], config, states)
        for later_ms in (0, 2500, 40_000):
            seen.append({name: snapshot(s, s.log_ms + later_ms, config).score for name, s in sorted(states.items())})
    return seen


def encoded(states: dict[str, InstanceState]) -> dict[str, bytes]:
    return {name: encode(state) for name, state in states.items()}


@given(records=logs(), config=any_config)
def test_every_score_and_term_is_finite_and_in_its_range(records: list[Record], config: ScoringConfig) -> None:
    states: dict[str, InstanceState] = {}
    for record in records:
        states = fold_all([record], config, states)
        for state in states.values():
            for later_ms in (0, 4000, HOUR_MS):
                seen = snapshot(state, state.log_ms + later_ms, config)
                assert 0.0 <= seen.score <= seen.raw <= 100.0
                assert all(0.0 <= term <= 1.0 for term in (seen.ttft, seen.error, seen.queue))
                assert seen.score == score(seen.state, config)
            for estimate in (state.ewma_ttft_ms, state.live_ttft_ms):
                assert estimate is None or math.isfinite(estimate)
            assert (state.ok_sum, state.err_sum) == (sum(state.ok), sum(state.err))
            assert state.window_s == state.tick // 10
            assert decode_state(encode(state)) == state, "within the bounds of the wire"


@settings(max_examples=150)
@given(pair=worsened(), config=any_config)
def test_more_errors_latency_waiting_or_kv_never_raise_a_score(
    pair: tuple[list[Record], list[Record]], config: ScoringConfig
) -> None:
    better, worse = (scores_along(records, config) for records in pair)
    for one, other in zip(better, worse, strict=True):
        for name, value in one.items():
            assert other[name] <= value + ROUNDING


@settings(max_examples=150)
@given(pair=slower(), evidence=st.sampled_from(["published", "censored"]), tau_ms=st.sampled_from([300.0, 20_000.0]))
def test_a_slower_first_token_or_an_older_waiting_request_never_raises_a_score(
    pair: tuple[list[tuple[int, Event]], list[tuple[int, Event]]], evidence: Any, tau_ms: float
) -> None:
    config = ScoringConfig(evidence=evidence, rise_ms=tau_ms, warmup_score=100.0, damping_per_s=1000.0)
    better = worse = fresh("a", T0_MS, config)
    for (log_ms, event), (_, slow_event) in zip(*pair, strict=True):
        better, worse = apply(better, event, log_ms, config), apply(worse, slow_event, log_ms, config)
        for later_ms in (0, 9000, 59_950, 60_050):
            now_ms = log_ms + later_ms
            assert score(at(worse, now_ms, config), config) <= score(at(better, now_ms, config), config) + ROUNDING


@given(records=logs(), config=any_config, data=st.data())
def test_rejections_and_lost_clients_never_change_a_score(
    records: list[Record], config: ScoringConfig, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(records) - 1))
    beside = data.draw(st.sampled_from(records[index][2].events))
    extra = extra_outcome(beside, data.draw(st.sampled_from(["rejected", "client_gone"])))
    events = records[index][2].events
    position = events.index(beside) + 1
    other = replaced(records, index, [*events[:position], extra, *events[position:]])
    assert scores_along(other, config) == scores_along(records, config)


@given(records=logs(), config=any_config)
def test_no_score_rises_faster_than_the_damping_allows(records: list[Record], config: ScoringConfig) -> None:
    states: dict[str, InstanceState] = {}
    lives: dict[tuple[str, int], list[tuple[int, float]]] = {}
    births = 0
    for record in records:
        before, states = states, fold_all([record], config, states)
        for name, state in states.items():
            old = before.get(name)
            if old is None or old.generation != state.generation or (old.left_ms is not None and state.left_ms is None):
                births += 1
                lives[name, births] = []
            life = lives[max(key for key in lives if key[0] == name)]
            life.append((state.tick, score(state, config)))
            ahead = at(state, state.log_ms + 700, config)  # what it would be, did nothing happen
            for tick, low in life:
                for now in (state, ahead):
                    assert score(now, config) <= low + config.damping_per_s / 10 * (now.tick - tick) + ROUNDING


@given(records=logs(), config=any_config)
def test_a_new_generation_starts_at_most_at_the_warmup_score(records: list[Record], config: ScoringConfig) -> None:
    states: dict[str, InstanceState] = {}
    for record in records:
        before, states = states, fold_all([record], config, states)
        for name, state in states.items():
            if (
                name not in before
                or before[name].generation != state.generation
                or (before[name].restarts != state.restarts)
            ):
                assert score(state, config) <= config.warmup_score


@given(records=logs(), config=any_config, data=st.data())
def test_a_log_folded_twice_or_with_records_sent_again_equals_the_log(
    records: list[Record], config: ScoringConfig, data: st.DataObject
) -> None:
    once = fold_all(records, config)
    assert fold_all(records, config, once) == once
    # Who is forgotten is new when a record about it is sent again, so nobody is forgotten here.
    config = structs.replace(config, grave_ms=24 * HOUR_MS)
    once = fold_all(records, config)
    noisy: list[Record] = []
    for index, (offset, log_ms, record) in enumerate(records):
        noisy.append((1000 * offset, log_ms, record))
        for again in data.draw(st.lists(st.integers(0, index), max_size=2)):
            noisy.append((1000 * offset + len(noisy) + 1, log_ms, records[again][2]))
    states = fold_all(noisy, config)
    for name, state in states.items():
        state.as_of = once[name].as_of  # offsets differ by construction
    assert encoded(states) == encoded(once)


@given(history=histories(), data=st.data())
def test_advancing_in_one_step_or_in_many_gives_identical_bits(
    history: tuple[InstanceState, ScoringConfig], data: st.DataObject
) -> None:
    state, config = history
    stepwise = state
    for now_ms in data.draw(moments(state)):
        stepwise = at(stepwise, now_ms, config)
        assert encode(stepwise) == encode(at(state, now_ms, config))


@settings(max_examples=150)
@given(state=lone_states(), config=lone_configs, start=st.integers(1, 3))
def test_the_short_cut_over_quiet_time_equals_ticking_through_it(
    state: InstanceState, config: ScoringConfig, start: int
) -> None:
    naive = state
    for tick in range(state.tick + start, state.tick + 270, 3):
        naive = advance_naively(naive, 100 * tick, config)
        assert encode(at(state, 100 * tick + 99, config)) == encode(naive)


@settings(max_examples=8)
@given(history=histories(), hours=st.sampled_from([1, 3]))
def test_the_short_cut_holds_over_hours(history: tuple[InstanceState, ScoringConfig], hours: int) -> None:
    state, config = history
    now_ms = state.tick * 100 + hours * HOUR_MS + 50
    assert encode(at(state, now_ms, config)) == encode(advance_naively(state, now_ms, config))


@given(history=histories(), data=st.data())
def test_events_after_reading_ahead_up_to_their_time_change_nothing(
    history: tuple[InstanceState, ScoringConfig], data: st.DataObject
) -> None:
    state, config = history
    event = outcome(data.draw(st.sampled_from(["ok", "timeout", "saturated"])), gen=state.generation)
    times = data.draw(moments(state))
    if times:
        read_ahead = at(state, times[0], config)
        assert encode(apply(read_ahead, event, times[-1], config)) == encode(apply(state, event, times[-1], config))


@given(history=histories(), data=st.data())
def test_reading_and_folding_never_change_what_they_are_given(
    history: tuple[InstanceState, ScoringConfig], data: st.DataObject
) -> None:
    state, config = history
    (_, log_ms, record), *_ = data.draw(logs())
    record = batch(*record.events, incarnation=99)
    before, written = encode(state), encode(record)
    for now_ms in data.draw(moments(state)):
        seen = snapshot(state, now_ms, config)
        seen.state.ok[0] += 1  # nor does it share anything that can be changed
        seen.state.loads[5] = None  # type: ignore[assignment]
        at(state, now_ms, config).err[3] += 1
        score(state, config)
    fold({state.instance: state}, record, state.as_of + 1, state.log_ms + log_ms, always(config))
    for event in record.events:
        apply(state, event, state.log_ms + 5, config)
    assert encode(state) == before
    assert encode(record) == written


@given(records=logs(), config=any_config, data=st.data())
def test_states_that_went_through_bytes_go_on_bit_by_bit(
    records: list[Record], config: ScoringConfig, data: st.DataObject
) -> None:
    expected: dict[str, InstanceState] = {}
    states: dict[str, InstanceState] = {}
    for offset, log_ms, record in records:
        expected = fold_all([(offset, log_ms, record)], config, expected)
        states = fold_all([(offset, log_ms, decode_batch(encode(record)))], config, states)
        if data.draw(st.booleans()):
            states = {name: decode_state(encode(state)) for name, state in states.items()}
    assert encoded(states) == encoded(expected)
    for name, state in states.items():
        now_ms = state.log_ms + 2500
        assert encode(snapshot(state, now_ms, config)) == encode(snapshot(expected[name], now_ms, config))


@given(records=logs(), config=any_config)
def test_the_order_of_instances_loads_and_watermarks_does_not_matter(
    records: list[Record], config: ScoringConfig
) -> None:
    def turned(states: dict[str, InstanceState]) -> dict[str, InstanceState]:
        result = {}
        for name in reversed(states):
            result[name] = decode_state(encode(states[name]))
            result[name].loads = dict(reversed(states[name].loads.items()))
            result[name].watermarks = dict(reversed(states[name].watermarks.items()))
        return result

    half = len(records) // 2
    states = fold_all(records[:half], config)
    one, other = fold_all(records[half:], config, states), fold_all(records[half:], config, turned(states))
    assert one == other
    for name, state in one.items():
        now_ms = state.log_ms + 700
        assert encode(snapshot(state, now_ms, config)) == encode(snapshot(other[name], now_ms, config))


@given(records=logs(), config=any_config)
def test_instances_do_not_influence_each_other(records: list[Record], config: ScoringConfig) -> None:
    together = fold_all(records, config)
    for name in together:
        own: list[Record] = []
        for offset, log_ms, record in records:
            events = [event for event in record.events if event.instance == name]
            own += replaced([(offset, log_ms, record)], 0, events)
        assert encode(fold_all(own, config)[name]) == encode(together[name])


@given(records=logs(), config=any_config)
def test_applying_events_one_by_one_is_what_a_fold_does(records: list[Record], config: ScoringConfig) -> None:
    config = structs.replace(config, aged_ms=24 * HOUR_MS, grave_ms=24 * HOUR_MS)  # `apply` knows neither
    folded = fold_all([(offset, log_ms, batch(*r.events, seq=offset)) for offset, log_ms, r in records], config)
    states: dict[str, InstanceState] = {}
    for _, log_ms, record in records:
        for event in record.events:
            name = event.instance
            states[name] = apply(states.get(name) or fresh(name, log_ms, config), event, log_ms, config)
    for name, state in states.items():
        state.as_of, state.watermarks = folded[name].as_of, folded[name].watermarks
        state.loads = folded[name].loads  # `apply` does not know who reported them
        assert encode(state) == encode(folded[name])


@pytest.mark.parametrize("config", [NEVER_DAMPED, ScoringConfig(evidence="censored", damping_per_s=1.0)])
def test_a_decade_of_silence_is_one_short_step(config: ScoringConfig) -> None:
    state = apply(fresh("a", T0_MS, config), outcome("timeout"), T0_MS, config)
    assert score(at(state, T0_MS + 10 * 365 * 24 * HOUR_MS, config), config) == 100.0
