"""The learned line of TTFT and the slowness judged by it."""

import random

import pytest

from evenload.schemas import FirstToken, InstanceState, Membership, Outcome, Overdue
from evenload.scoring import DEFAULT, apply, fresh
from evenload.scoring.prediction import ATTENTION_TOKENS, learn, predicted_ms, work_of
from evenload.scoring.slowness import RATIO_MAX, ratio_of, witness

T0_MS = 1_700_000_000_000


def learned(base_ms: float, token_ms: float, samples: int = 300, sigma: float = 0.0, seed: int = 1) -> InstanceState:
    state, rng = fresh("a", T0_MS), random.Random(seed)
    for _ in range(samples):
        work = rng.expovariate(1 / 1500)
        noise = rng.lognormvariate(0.0, sigma) if sigma else 1.0
        learn(state, work, (base_ms + token_ms * work) * noise, DEFAULT)
    return state


def told(state: InstanceState, ttft_ms: float, after_ms: int = 100, predicted: float = 200.0) -> InstanceState:
    event = FirstToken(instance="a", ttft_ms=ttft_ms, prompt_tokens=100, predicted_ms=predicted)
    return apply(state, event, state.log_ms + after_ms)


def test_an_engines_step_and_prefill_rate_are_found() -> None:
    state = learned(35.0, 0.031)
    assert state.base_ms == pytest.approx(35.0, abs=1.5)
    assert state.token_ms == pytest.approx(0.031, rel=0.02)
    assert state.fit_trust > 0.9
    assert predicted_ms(state, 10_000.0) == pytest.approx(345.0, rel=0.02)


def test_the_slope_of_a_provider_is_luck_and_says_so() -> None:
    state = learned(200.0, 0.0, sigma=0.35)
    assert state.base_ms == pytest.approx(212.0, rel=0.12)
    assert state.fit_trust < 0.35


def test_a_fault_does_not_become_the_new_normal() -> None:
    state = learned(200.0, 0.0, sigma=0.35)
    before = state.base_ms
    for _ in range(20):
        learn(state, 500.0, 3500.0, DEFAULT)
    assert state.base_ms == pytest.approx(before, rel=0.02)


def test_attention_makes_long_prompts_count_more() -> None:
    assert work_of(1000.0) == pytest.approx(1024.0, rel=0.001)
    assert work_of(ATTENTION_TOKENS) == 2.0 * ATTENTION_TOKENS


def test_nothing_is_predicted_before_the_first_sample() -> None:
    assert predicted_ms(fresh("a", T0_MS), 100.0) is None
    assert predicted_ms(told(fresh("a", T0_MS), 250.0), 0.0) == pytest.approx(250.0)


def test_a_ratio_forgives_a_tenth_of_a_second_and_has_bounds() -> None:
    assert ratio_of(120.0, 30.0, DEFAULT) == pytest.approx(220 / 130)
    assert ratio_of(1.0, 500.0, DEFAULT) == 1.0
    assert ratio_of(1e9, 1.0, DEFAULT) == RATIO_MAX


def test_one_odd_answer_convicts_nobody_and_some_in_a_row_do() -> None:
    state = fresh("a", T0_MS)
    for _ in range(20):
        state = told(state, 200.0, 60)
    odd = told(state, 700.0, 60)
    assert odd.slowness < 1.5
    for _ in range(4):
        odd = told(odd, 3500.0, 60)
    assert odd.slowness > 4.0


def test_waiting_requests_convict_before_their_first_token_and_never_acquit() -> None:
    state = fresh("a", T0_MS)
    for age_ms in (250.0, 500.0, 500.0, 500.0, 1000.0):
        before = state.slowness
        state = apply(state, Overdue(instance="a", age_ms=age_ms, predicted_ms=200.0), state.log_ms + 60)
        assert state.slowness >= before
    assert state.slowness > 1.5
    assert (
        apply(state, Overdue(instance="a", age_ms=250.0, predicted_ms=200.0), T0_MS + 9000).slowness == state.slowness
    )


def test_an_isolated_good_answer_all_but_clears_and_a_good_one_among_many_does_not() -> None:
    state = fresh("a", T0_MS)
    witness(state, 17.0, DEFAULT)
    state.slowness = 17.0
    assert told(state, 200.0, 4000).slowness < 1.5
    assert told(state, 200.0, 50).slowness > 10.0


def test_without_evidence_a_conviction_stays() -> None:
    state = fresh("a", T0_MS)
    state.slowness = 17.0
    assert apply(state, Outcome(instance="a", kind="ok"), T0_MS + 3_600_000).slowness == 17.0


def test_failures_count_as_slow_from_the_second_on() -> None:
    failed = Outcome(instance="a", kind="http_error")
    once = apply(fresh("a", T0_MS), failed, T0_MS + 100)
    assert once.slowness == 1.0
    assert apply(once, failed, T0_MS + 200).slowness > 4.0


def test_a_restarted_process_starts_unknown() -> None:
    state = learned(35.0, 0.031)
    state.slowness = 9.0
    down = apply(state, Membership(instance="a", change="not_ready", cause="refused"), T0_MS + 100)
    back = apply(down, Membership(instance="a", change="ready"), T0_MS + 200)
    assert (back.slowness, back.fit_weight, back.token_ms) == (1.0, 0.0, 0.0)
    assert predicted_ms(back, 100.0) is None
