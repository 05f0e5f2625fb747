"""The black box provider."""

from math import log
from random import Random
from statistics import median, pstdev

import pytest

from evenload.sim.provider import Provider, ProviderModel
from evenload.sim.sequence import EmissionKind, SimRequest


def test_ttft_is_log_normal_with_the_given_median_and_spread() -> None:
    provider = Provider(ProviderModel(ttft_ms=200.0, sigma=0.35), Random(1))
    for number in range(4000):
        provider.submit(SimRequest(str(number), 100, 1), 0.0)
    firsts = [e.at_ms for e in provider.advance(1e9) if e.kind is EmissionKind.FIRST_TOKEN]
    assert median(firsts) == pytest.approx(200, rel=0.03)
    assert pstdev(map(log, firsts)) == pytest.approx(0.35, rel=0.05)


def test_tokens_follow_at_a_steady_pace_and_the_answer_ends() -> None:
    provider = Provider(ProviderModel(per_token_ms=10.0), Random(1))
    provider.submit(SimRequest("a", 100, 4), 0.0)
    first_ms = provider.next_step_ms()
    assert first_ms is not None
    provider.advance(first_ms + 20.0)
    assert provider.tokens_of("a") == 3
    last = provider.advance(1e9)[-1]
    assert last.kind is EmissionKind.FINISHED
    assert last.at_ms == pytest.approx(first_ms + 30.0)
    assert not provider.holds("a")
    assert provider.next_step_ms() is None


def test_the_rate_limit_refuses_and_recovers_with_time() -> None:
    provider = Provider(ProviderModel(rate_limit_rps=2.0), Random(1))
    assert [provider.submit(SimRequest(str(i), 1, 1), 0.0) for i in range(4)] == [True, True, False, False]
    assert provider.submit(SimRequest("later", 1, 1), 500.0)
    assert not provider.submit(SimRequest("too soon", 1, 1), 600.0)


def test_an_aborted_request_is_forgotten() -> None:
    provider = Provider(ProviderModel(), Random(1))
    provider.submit(SimRequest("a", 1, 3), 0.0)
    assert provider.abort("a", 1.0)
    assert provider.advance(1e9) == []


@pytest.mark.parametrize("wrong", [{"ttft_ms": 0.0}, {"sigma": -1.0}, {"per_token_ms": 0.0}, {"rate_limit_rps": 0.0}])
def test_models_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="provider:"):
        ProviderModel(**wrong)
