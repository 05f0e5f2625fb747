"""`random`: each candidate with the same probability."""

from collections.abc import Sequence

from evenload.routing.policy import Choice, InstanceView, Request, Rng


class Uniform:
    """One uniform draw."""

    name = "random"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return anyone."""
        count = len(candidates)
        index = int(rng.random() * count)
        return Choice(index=index, reason="draw", probability=1.0 / count, costs=[0.0] * count)
