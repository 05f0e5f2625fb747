"""`peak-ewma-penalty`: Peak-EWMA in which a failure counts as a very slow answer, as Linkerd's failure penalty.

    latency = (1 - p) * EWMA + p * 5 s        p: share of errors in 10 s
    latency = max(5 s, what is left of the cooling) while the instance cools after 429 or 503
    cost = latency * (in-flight + 1)          P2C

Approximated: the failures of 10 s stand for the failed samples that an EWMA of one's own would hold.
"""

from collections.abc import Sequence

from evenload.routing.p2c import p2c
from evenload.routing.peak_ewma import peak_cost
from evenload.routing.peak_ewma_10s import decayed_ms
from evenload.routing.policy import Choice, InstanceView, Request, Rng
from evenload.scoring.cooling import cooling_left_ms

PENALTY_MS = 5_000.0


def _latency_ms(view: InstanceView, now_ms: int) -> float | None:
    state = view.state
    left_ms = cooling_left_ms(state, now_ms)
    if left_ms:
        return PENALTY_MS if left_ms < PENALTY_MS else float(left_ms)
    known = decayed_ms(view, now_ms)
    if not state.err_sum:
        return known
    failing = state.err_sum / (state.err_sum + state.ok_sum)
    return (1.0 - failing) * (known or 0.0) + failing * PENALTY_MS


class PeakEwmaPenalty:
    """P2C on penalised latency times own load."""

    name = "peak-ewma-penalty"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the cheaper of two."""
        return p2c([peak_cost(_latency_ms(view, now_ms), view.in_flight) for view in candidates], rng)
