"""Power of two choices: draw two distinct candidates, take the cheaper (Mitzenmacher 2001).

With weights, the first is drawn with probability w_i / W and the second with w_j / (W - w_i). Ties go to the first
drawn. The probability of the outcome is exact, which what-if evaluation needs; it costs one pass over the candidates.
What it does not handle: by itself the ordinal comparison gives the worst of N candidates exactly nothing.
"""

from collections.abc import Sequence

from evenload.routing.policy import Choice, InstanceView, Request, Rng

WEIGHT_MIN = 1e-9  # keeps every candidate possible, and the probabilities finite


def p2c(costs: list[float], rng: Rng, weights: Sequence[float] | None = None, tie_share: float = 0.0) -> Choice:
    """Return the choice by power of two choices.

    Args:
        costs: at least 0 where `tie_share` is used; the lower, the better.
        rng: gives two uniforms, none for a single candidate.
        weights: of being drawn; uniform without.
        tie_share: a first drawn that costs at most this share more than the second still wins, so that noise in an
            estimate does not decide (the ordinal comparison would give the worst by a hair nothing at all).
    """
    count = len(costs)
    if count == 1:
        return Choice(index=0, reason="only", probability=1.0, costs=costs)
    slack = 1.0 + tie_share
    if weights is None:
        first = int(rng.random() * count)
        second = int(rng.random() * (count - 1))
        second += second >= first
        winner = first if costs[first] <= costs[second] * slack else second
        probability = _uniform_probability(costs, winner, slack)
    else:
        floored = [weight if weight > WEIGHT_MIN else WEIGHT_MIN for weight in weights]
        first = _draw(floored, -1, rng)
        second = _draw(floored, first, rng)
        winner = first if costs[first] <= costs[second] * slack else second
        probability = _weighted_probability(costs, floored, winner, slack)
    tied = winner == first and costs[second] <= costs[first] * slack
    return Choice(index=winner, reason="tie" if tied else "cheaper", probability=probability, costs=costs)


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


def _uniform_probability(costs: list[float], winner: int, slack: float) -> float:
    mine = costs[winner]
    wins = -1  # the comparison with itself
    for cost in costs:
        wins += (mine <= cost * slack) + (cost > mine * slack)
    count = len(costs)
    return wins / (count * (count - 1))


def _weighted_probability(costs: list[float], weights: list[float], winner: int, slack: float) -> float:
    total = 0.0
    for weight in weights:
        total += weight
    mine, own = costs[winner], weights[winner]
    result = 0.0
    for index, weight in enumerate(weights):
        if index == winner:
            continue
        if mine <= costs[index] * slack:
            result += own / total * (weight / (total - own))
        if costs[index] > mine * slack:
            result += weight / total * (own / (total - weight))
    return min(1.0, result)  # rounding


class P2cInFlight:
    """P2C on own requests in flight."""

    name = "p2c-in-flight"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the less loaded of two."""
        return p2c([float(view.in_flight) for view in candidates], rng)
