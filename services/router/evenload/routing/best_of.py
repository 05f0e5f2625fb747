"""Power of d choices: the cheapest of d distinct candidates drawn uniformly (d = 2: Mitzenmacher 2001).

Ties among the drawn go to the first drawn. With w candidates dearer than the winner and e as dear (itself included) of
n, the probability of the outcome is (C(w + e, d) - C(w, d)) / (e C(n, d)).
"""

from evenload.routing.policy import Choice, Rng


def best_of(costs: list[float], drawn: int, rng: Rng) -> Choice:
    """Return the cheapest of `drawn` candidates; of all when there are no more."""
    count = len(costs)
    if count == 1:
        return Choice(index=0, reason="only", probability=1.0, costs=costs)
    drawn = min(drawn, count)
    left = list(range(count))
    winner = -1
    for _ in range(drawn):
        index = left.pop(int(rng.random() * len(left)))
        if winner < 0 or costs[index] < costs[winner]:
            winner = index
    dearer = equal = 0
    for cost in costs:
        dearer += cost > costs[winner]
        equal += cost == costs[winner]
    ways = _choose(dearer + equal, drawn) - _choose(dearer, drawn)
    return Choice(index=winner, reason="cheapest", probability=ways / (equal * _choose(count, drawn)), costs=costs)


def _choose(count: int, drawn: int) -> int:
    result = 1
    for step in range(drawn):
        result = result * (count - step) // (step + 1)
    return result
