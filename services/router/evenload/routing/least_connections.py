"""`least-connections`: the fewest own requests in flight of all, ties at random."""

from collections.abc import Sequence

from evenload.routing.policy import Choice, InstanceView, Request, Rng


class LeastConnections:
    """Minimum of own in-flight over all candidates."""

    name = "least-connections"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return one of the least loaded."""
        costs = [float(view.in_flight) for view in candidates]
        least = min(costs)
        ties = [index for index, cost in enumerate(costs) if cost == least]
        index = ties[int(rng.random() * len(ties))] if len(ties) > 1 else ties[0]
        return Choice(index=index, reason="least", probability=1.0 / len(ties), costs=costs)
