"""`prequal`: hot-cold lexicographic choice (Wydrowski et al., NSDI 2024, "Load is not what you should balance").

An instance is hot when its requests in flight are above the 0.84 quantile of all. Of three drawn at random: the cold
one of the least latency; if all are hot, the one with the fewest requests in flight.

Approximated: probes. The view (own requests, others' by snapshot, the EWMA of TTFT in time) stands for the pool of
probe answers, three draws for the probes of a query; reuse limits of probes have no counterpart.
"""

from collections.abc import Sequence

from evenload.routing.best_of import best_of
from evenload.routing.policy import Choice, InstanceView, Request, Rng
from evenload.scoring.ewma import faded

QUANTILE = 0.84
DRAWN = 3
HOT_COST = 1e9  # above any latency: hot ones come after all cold ones


class Prequal:
    """Hot-cold, best of three."""

    name = "prequal"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the best of the drawn."""
        loads = [view.in_flight + view.others_in_flight for view in candidates]
        limit = sorted(loads)[int(QUANTILE * (len(loads) - 1))]
        costs = [
            HOT_COST + load if load > limit else _latency_ms(view, now_ms)
            for view, load in zip(candidates, loads, strict=True)
        ]
        return best_of(costs, DRAWN, rng)


def _latency_ms(view: InstanceView, now_ms: int) -> float:
    return faded(view.state.live_ttft_ms, now_ms - view.state.live_at_ms, view.config) or 0.0
