"""Weights: an instance of weight w gets the requests of w instances."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from evenload.routing import POLICIES, InstanceView, Request
from evenload.routing.predictive import Predictive
from tests.routing.views import NOW_MS, view

KNOWN = {"fit_weight": 100.0, "base_ms": 200.0, "token_ms": 0.0, "live_ttft_ms": 200.0, "slow_at_ms": NOW_MS}
WEIGHED = ("predictive", "peak-ewma-decay", "health-ramp")
DRAWS = 6_000


def weighed(*weights: float, in_flight: Sequence[int] = ()) -> list[InstanceView]:
    made = [view(name, **KNOWN) for name, _ in zip("abcdef", weights, strict=False)]  # type: ignore[arg-type]
    for one, weight in zip(made, weights, strict=True):
        one.weight = weight
    for one, count in zip(made, in_flight, strict=False):
        one.in_flight = one.awaiting = count
    return made


@pytest.mark.parametrize("policy", WEIGHED)
@pytest.mark.parametrize("weights", [(3.0, 1.0), (1.0, 1.0, 2.0, 4.0)])
def test_shares_come_to_be_as_the_weights(policy: str, weights: tuple[float, ...]) -> None:
    """In a closed loop: what is chosen is in flight until a random one ends."""
    rng, chooser = random.Random(1), POLICIES[policy]()
    views, running, got = weighed(*weights), list[int](), Counter[int]()
    for number in range(DRAWS):
        index = chooser.choose(views, Request(ordinal=number), NOW_MS, rng).index
        got[index] += 1
        running.append(index)
        views[index].in_flight += 1
        views[index].awaiting += 1
        if len(running) > 40:
            ended = running.pop(rng.randrange(len(running)))
            views[ended].in_flight -= 1
            views[ended].awaiting -= 1
    for index, weight in enumerate(weights):
        assert got[index] / DRAWS == pytest.approx(weight / sum(weights), rel=0.15), (policy, got)


@pytest.mark.parametrize("policy", WEIGHED)
def test_the_probability_told_is_the_frequency_seen(policy: str) -> None:
    rng, chooser = random.Random(5), POLICIES[policy]()
    views = weighed(1.0, 2.0, 4.0, in_flight=(0, 0, 0))
    told: dict[int, float] = {}
    got = Counter[int]()
    for _ in range(DRAWS):
        choice = chooser.choose(views, Request(), NOW_MS, rng)
        told[choice.index] = choice.probability
        got[choice.index] += 1
    for index, count in got.items():
        assert count / DRAWS == pytest.approx(told[index], abs=0.025)
    assert sum(told.values()) == pytest.approx(1.0)


def test_a_weight_does_not_buy_a_slow_instance_traffic() -> None:
    views = weighed(10.0, 1.0)
    views[0].state.slowness = 20.0
    choices = [Predictive().choose(views, Request(), NOW_MS, random.Random(n)).index for n in range(50)]
    assert set(choices) == {1}
