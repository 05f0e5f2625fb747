"""`predictive`: the least predicted TTFT, with what is too late in a prediction made up for by censored evidence.

    cost = (predicted TTFT + crowding + harm to others + errors) * slowness * KV pressure       `predictive_cost.py`

The least cost of all candidates wins, ties within 2 % (more among very many replicas: `tie_width`) at random, by
weight. Rare single re-tests find out whether a shunned instance has healed (`retest.py`), and `slowness`
(`evenload.scoring.slowness`) is lifted by one good answer; there is no ramp, because the balancing itself bounds a
newcomer: it is dear as soon as its share of requests awaits a token.

What it does not handle: what other routers' prompts left in a cache, unless the beginning of prompts is known
(`affinity.py`); requests are never held back or hedged.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from evenload.routing.policy import Choice, InstanceView, Request, Rng
from evenload.routing.predictive_constants import Constants
from evenload.routing.predictive_cost import costs_ms
from evenload.routing.retest import due
from evenload.routing.weights import draw, total_of, weights_of


class Predictive:
    """Least predicted cost of all candidates.

    Args:
        constants: fields of `Constants`.

    Raises:
        TypeError: no such constant.
        ValueError: one out of bounds.
    """

    name = "predictive"

    def __init__(self, **constants: Any) -> None:
        self.constants = Constants(**constants)

    def __repr__(self) -> str:
        return f"Predictive({self.constants})"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the cheapest, or a candidate that is to be re-tested."""
        k = self.constants
        costs, tie = costs_ms(candidates, request, now_ms, k)
        if len(costs) == 1:
            return Choice(index=0, reason="only", probability=1.0, costs=costs)
        weights = weights_of(candidates)
        test = due(candidates, now_ms, k.retest_share, k.retest_after_ms, k.retest_growth, steep=k.retest_steep)
        if test is None:
            return _least(costs, tie, weights, rng)
        if rng.random() < test.probability:
            chance = test.probability + (1.0 - test.probability) * _chance(costs, tie, weights, test.candidate)
            return Choice(index=test.candidate, reason="probe", probability=chance, costs=costs)
        choice = _least(costs, tie, weights, rng)
        chance = choice.probability * (1.0 - test.probability)
        return replace(choice, probability=chance + (test.probability if choice.index == test.candidate else 0.0))


def _least(costs: list[float], tie: float, weights: list[float] | None, rng: Rng) -> Choice:
    ties = _ties(costs, tie)
    if len(ties) == 1:
        return Choice(index=ties[0], reason="least", probability=1.0, costs=costs)
    index = ties[int(rng.random() * len(ties))] if weights is None else draw(ties, weights, rng)
    return Choice(index=index, reason="tie", probability=_share(ties, weights, index), costs=costs)


def _ties(costs: list[float], tie: float) -> list[int]:
    limit = min(costs) * (1.0 + tie)
    return [index for index, cost in enumerate(costs) if cost <= limit]


def _share(ties: list[int], weights: list[float] | None, index: int) -> float:
    return 1.0 / len(ties) if weights is None else weights[index] / total_of(ties, weights)


def _chance(costs: list[float], tie: float, weights: list[float] | None, index: int) -> float:
    ties = _ties(costs, tie)
    return _share(ties, weights, index) if index in ties else 0.0
