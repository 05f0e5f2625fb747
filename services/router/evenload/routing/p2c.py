"""Power of two choices: draw two distinct candidates, take the cheaper (Mitzenmacher 2001).

With weights, the first is drawn with probability w_i / W and the second with w_j / (W - w_i). Ties go to the first
drawn. The probability of the outcome is exact, which what-if evaluation needs; it costs one pass over the candidates.
What it does not handle: by itself the ordinal comparison gives the worst of N candidates exactly nothing.
"""

from collections.abc import Sequence

from evenload.routing.policy import Choice, InstanceView, Request, Rng

WEIGHT_MIN = 1e-9  # keeps every candidate possible, and the probabilities finite


def p2c(costs: list[float], rng: Rng, weights: Sequence[float] | None = None) -> Choice:
    """Return the choice by power of two choices over `costs`, drawn uniformly or by `weights`."""
    count = len(costs)
    if count == 1:
        return Choice(index=0, reason="only", probability=1.0, costs=costs)
    if weights is None:
        first = int(rng.random() * count)
        second = int(rng.random() * (count - 1))
        second += second >= first
        winner = first if costs[first] <= costs[second] else second
        probability = _uniform_probability(costs, winner)
    else:
        floored = [weight if weight > WEIGHT_MIN else WEIGHT_MIN for weight in weights]
        first = _draw(floored, -1, rng)
        second = _draw(floored, first, rng)
        winner = first if costs[first] <= costs[second] else second
        probability = _weighted_probability(costs, floored, winner)
    return Choice(
        index=winner, reason="tie" if costs[first] == costs[second] else "cheaper", probability=probability, costs=costs
    )


def _draw(weights: list[float], without: int, rng: Rng) -> int:
    total = 0.0
    for index, weight in enumerate(weights):
        if index != without:
            total += weight
    left = rng.random() * total
    last = -1
    for index, weight in enumerate(weights):
        if index == without:
            continue
        last = index
        left -= weight
        if left < 0.0:
            break
    return last


def _uniform_probability(costs: list[float], winner: int) -> float:
    mine = costs[winner]
    wins = 0
    for cost in costs:
        wins += 2 * (cost > mine) + (cost == mine)
    count = len(costs)
    return (wins - 1) / (count * (count - 1))  # less the comparison with itself


def _weighted_probability(costs: list[float], weights: list[float], winner: int) -> float:
    total = 0.0
    for weight in weights:
        total += weight
    mine, own = costs[winner], weights[winner]
    result = 0.0
    for index, weight in enumerate(weights):
        if index == winner:
            continue
        if mine <= costs[index]:
            result += own / total * (weight / (total - own))
        if mine < costs[index]:
            result += weight / total * (own / (total - weight))
    return result if result < 1.0 else 1.0  # rounding


class P2cInFlight:
    """P2C on own requests in flight."""

    name = "p2c-in-flight"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the less loaded of two."""
        return p2c([float(view.in_flight) for view in candidates], rng)
