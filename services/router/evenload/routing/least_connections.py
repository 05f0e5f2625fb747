"""`least-connections`: the fewest own requests in flight of all, ties at random."""

from collections.abc import Sequence

from evenload.routing.least import least
from evenload.routing.policy import Choice, InstanceView, Request, Rng


class LeastConnections:
    """Minimum of own in-flight over all candidates."""

    name = "least-connections"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return one of the least loaded."""
        return least([float(view.in_flight) for view in candidates], rng)
