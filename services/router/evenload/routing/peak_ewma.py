"""`peak-ewma`: the published policy, verbatim.

P2C on EWMA latency * (in-flight + 1), after Finagle's Peak-EWMA balancer. As there, an unmeasured instance is free
until it has a request in flight, and then dear until its first sample. What it does not handle: an EWMA that moves
per sample only never lets a shunned instance return, and an instance that fails at once looks fast. `peak-ewma-decay`
is the usable form.
"""

from collections.abc import Sequence

from evenload.routing.p2c import p2c
from evenload.routing.policy import Choice, InstanceView, Request, Rng

UNMEASURED_MS = 1e6


def peak_cost(latency_ms: float | None, in_flight: float) -> float:
    """Return EWMA latency * (in-flight + 1)."""
    if latency_ms is None:
        return UNMEASURED_MS + in_flight if in_flight else 0.0
    return latency_ms * (in_flight + 1)


class PeakEwma:
    """P2C on the published EWMA times own load."""

    name = "peak-ewma"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the cheaper of two."""
        return p2c([peak_cost(view.state.ewma_ttft_ms, view.in_flight) for view in candidates], rng)
