"""`peak-ewma-decay`: Peak-EWMA in its usable form.

    cost = (EWMA of TTFT in time + 5 s * error term) * (in-flight / weight + 1)
    P2C, drawn by weight; 0.5 % probes

The EWMA decays over 10 s without samples and learns from the ages of waiting requests (`evenload.scoring.ewma`). The
error term makes failing dearer than any healthy latency. It does not know prompt sizes.
"""

from collections.abc import Sequence

from evenload.routing.p2c import p2c
from evenload.routing.peak_ewma import peak_cost
from evenload.routing.policy import Choice, InstanceView, Request, Rng
from evenload.routing.probe import with_probes
from evenload.routing.weights import weights_of
from evenload.scoring.damping import terms
from evenload.scoring.ewma import faded

ERROR_PENALTY_MS = 5_000.0


def _latency_ms(view: InstanceView, now_ms: int) -> float | None:
    state = view.state
    known = faded(state.live_ttft_ms, now_ms - state.live_at_ms, view.config)
    error = terms(state, state.tick, view.config)[1]
    return (known or 0.0) + ERROR_PENALTY_MS * error if error else known


class PeakEwmaDecay:
    """P2C on the decaying, censored EWMA times own load, with probes."""

    name = "peak-ewma-decay"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the cheaper of two."""
        costs = [peak_cost(_latency_ms(view, now_ms), view.in_flight / view.weight) for view in candidates]
        return with_probes(candidates, now_ms, rng, lambda: p2c(costs, rng, weights_of(candidates)))
