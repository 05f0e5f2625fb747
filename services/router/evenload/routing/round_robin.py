"""`round-robin`: each candidate in turn, whatever its state."""

from collections.abc import Sequence

from evenload.routing.policy import Choice, InstanceView, Request, Rng


class RoundRobin:
    """The request's ordinal modulo the number of candidates."""

    name = "round-robin"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the next in turn."""
        index = request.ordinal % len(candidates)
        return Choice(index=index, reason="turn", probability=1.0, costs=[0.0] * len(candidates))
