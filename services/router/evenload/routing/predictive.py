"""`predictive`: the least predicted TTFT, with what is too late in a prediction made up for by censored evidence.

    cost = (predicted TTFT + crowding + harm to others + errors) * slowness * KV pressure       `predictive_cost.py`

The least cost of all candidates wins, ties within 2 % (more among very many replicas: `tie_width`) at random. Rare
single re-tests find out whether a shunned instance has healed (`retest.py`), and `slowness`
(`evenload.scoring.slowness`) is lifted by one good answer; there is no ramp, because the balancing itself bounds a
newcomer: it is dear as soon as its share of requests awaits a token.

What it does not handle: prompts whose prefix is cached count less (`cached_tokens`), but nothing is done to make
prefixes meet their cache; requests are never held back or hedged.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from evenload.routing.policy import Choice, InstanceView, Request, Rng
from evenload.routing.predictive_cost import Constants, costs_ms, tie_width
from evenload.routing.retest import due


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
        costs = costs_ms(candidates, request, now_ms, k)
        if len(costs) == 1:
            return Choice(index=0, reason="only", probability=1.0, costs=costs)
        tie = tie_width(candidates, k)
        test = due(candidates, now_ms, k.retest_share, k.retest_after_ms, k.retest_growth)
        if test is None:
            return _least(costs, tie, rng)
        if rng.random() < test.probability:
            chance = test.probability + (1.0 - test.probability) * _chance(costs, tie, test.candidate)
            return Choice(index=test.candidate, reason="probe", probability=chance, costs=costs)
        choice = _least(costs, tie, rng)
        chance = choice.probability * (1.0 - test.probability)
        return replace(choice, probability=chance + (test.probability if choice.index == test.candidate else 0.0))


def _least(costs: list[float], tie: float, rng: Rng) -> Choice:
    limit = min(costs) * (1.0 + tie)
    ties = [index for index, cost in enumerate(costs) if cost <= limit]
    index = ties[int(rng.random() * len(ties))] if len(ties) > 1 else ties[0]
    return Choice(index=index, reason="least" if len(ties) == 1 else "tie", probability=1.0 / len(ties), costs=costs)


def _chance(costs: list[float], tie: float, index: int) -> float:
    limit = min(costs) * (1.0 + tie)
    if costs[index] > limit:
        return 0.0
    ties = 0
    for cost in costs:
        ties += cost <= limit
    return 1.0 / ties
