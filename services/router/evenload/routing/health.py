"""`health`: the published policy, verbatim.

P2C on health score minus 2 points per own request in flight. What it does not handle: the comparison is ordinal, so a
healed instance gets no traffic at low concurrency, and without traffic its EWMA never recovers. `health-ramp` is the
usable form.
"""

from collections.abc import Sequence

from evenload.routing.p2c import p2c
from evenload.routing.policy import Choice, InstanceView, Request, Rng

POINTS_PER_REQUEST = 2.0


class Health:
    """P2C on score - 2 * in-flight."""

    name = "health"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the better scored of two."""
        return p2c([POINTS_PER_REQUEST * view.in_flight - view.score for view in candidates], rng)
