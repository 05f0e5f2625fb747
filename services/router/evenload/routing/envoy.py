"""`envoy-least-request`: Envoy's least-request balancer with outlier ejection and slow start.

P2C on own requests in flight among the hosts that are not ejected; the draw weight of a new host grows with its damped
score. Ejected, worst first and at most a tenth of the hosts (always one), is who in the last 10 s
- answered nothing but errors, at least 5 of them (`consecutive_5xx`), or
- is an outlier of the success rate: below mean - 1.9 standard deviations of at least 5 hosts with 100 requests each.

Approximated: an ejection lasts as long as the window shows its reason, not 30 s times its number; slow start (30 points
to 100 at 15 a second) takes 5 s; the weight of Envoy's weighted form falls with load, here only the draw is weighted.
"""

from collections.abc import Sequence

from evenload.routing.p2c import p2c
from evenload.routing.policy import Choice, InstanceView, Request, Rng

CONSECUTIVE = 5
HOSTS_MIN, REQUESTS_MIN = 5, 100
VARIANCE_FACTOR = 1.9 * 1.9
EJECTED_COST = 1e9


def ejected(candidates: Sequence[InstanceView]) -> set[int]:
    """Return the indices of the ejected."""
    rates: list[tuple[float, int]] = []
    for index, view in enumerate(candidates):
        total = view.state.ok_sum + view.state.err_sum
        if total:
            rates.append((view.state.ok_sum / total, index))
    floor_gap = _outlier_gap([rate for rate, index in rates if _requests(candidates[index]) >= REQUESTS_MIN])
    mean, variance = floor_gap
    suspects: list[tuple[float, int]] = []
    for rate, index in sorted(rates):
        failing = rate == 0.0 and candidates[index].state.err_sum >= CONSECUTIVE
        behind = mean - rate
        outlier = variance >= 0.0 and _requests(candidates[index]) >= REQUESTS_MIN and behind > 0.0
        if failing or (outlier and behind * behind > VARIANCE_FACTOR * variance):
            suspects.append((rate, index))
    most = max(1, len(candidates) // 10)
    return {index for _, index in suspects[:most]} if len(candidates) > 1 else set()


def _requests(view: InstanceView) -> int:
    return view.state.ok_sum + view.state.err_sum


def _outlier_gap(rates: list[float]) -> tuple[float, float]:
    """Return mean and variance; a variance of -1 says that there are too few hosts."""
    if len(rates) < HOSTS_MIN:
        return 0.0, -1.0
    mean = variance = 0.0
    for rate in rates:
        mean += rate / len(rates)
    for rate in rates:
        variance += (rate - mean) * (rate - mean) / len(rates)
    return mean, variance


class EnvoyLeastRequest:
    """P2C on own in-flight, outliers ejected."""

    name = "envoy-least-request"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the less loaded of two."""
        out = ejected(candidates)
        kept = [index for index in range(len(candidates)) if index not in out]
        choice = p2c(
            [float(candidates[index].in_flight) for index in kept],
            rng,
            [candidates[index].state.damped for index in kept],
        )
        costs = [EJECTED_COST] * len(candidates)
        for index, cost in zip(kept, choice.costs, strict=True):
            costs[index] = cost
        return Choice(index=kept[choice.index], reason=choice.reason, probability=choice.probability, costs=costs)
