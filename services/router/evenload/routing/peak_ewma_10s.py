"""`peak-ewma-10s`: Peak-EWMA with decay in time, as Finagle and Linkerd have it, and nothing else.

    cost = EWMA * 10 s / (10 s + idle) * (in-flight + 1)        P2C

Approximated: the EWMA moves per finished sample (Finagle weighs by the time between samples and jumps to peaks), and
decay takes the rational form. Without censored evidence, errors and probes; `peak-ewma-decay` has those.
"""

from collections.abc import Sequence

from evenload.routing.p2c import p2c
from evenload.routing.peak_ewma import peak_cost
from evenload.routing.policy import Choice, InstanceView, Request, Rng

DECAY_MS = 10_000.0


def decayed_ms(view: InstanceView, now_ms: int) -> float | None:
    """Return the per-sample EWMA of TTFT, faded by the time without samples."""
    known = view.state.ewma_ttft_ms
    idle_ms = now_ms - view.state.live_at_ms
    return known if known is None or idle_ms <= 0 else known * (DECAY_MS / (DECAY_MS + idle_ms))


class PeakEwma10s:
    """P2C on the decaying EWMA times own load."""

    name = "peak-ewma-10s"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the cheaper of two."""
        return p2c([peak_cost(decayed_ms(view, now_ms), view.in_flight) for view in candidates], rng)
