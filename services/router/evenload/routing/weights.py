"""Weights: an instance of weight w is treated like w instances of weight 1, each with a w-th of its load.

So where candidates are drawn it is w times as likely, and where their own load is compared it counts 1/w: at equal
latency the requests in flight, hence the shares, come to be as the weights. A prediction of TTFT stays as it is, for it
is about one request. What it does not handle: a latency that differs much outweighs a weight.
"""

from collections.abc import Sequence

from evenload.routing.policy import InstanceView, Rng


def weights_of(candidates: Sequence[InstanceView]) -> list[float] | None:
    """Return the candidates' weights, None when all are the same: then nobody needs them."""
    first = candidates[0].weight
    for view in candidates:
        if view.weight != first:
            return [view.weight for view in candidates]
    return None


def draw(indices: Sequence[int], weights: Sequence[float], rng: Rng) -> int:
    """Return one of the indices, each as likely as its weight says; takes one uniform."""
    left = rng.random() * total_of(indices, weights)
    for index in indices:
        left -= weights[index]
        if left < 0.0:
            return index
    return indices[-1]


def total_of(indices: Sequence[int], weights: Sequence[float]) -> float:
    """Return the sum of the weights at the indices, in their order."""
    total = 0.0
    for index in indices:
        total += weights[index]
    return total
