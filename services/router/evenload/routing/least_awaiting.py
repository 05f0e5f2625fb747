"""`least-awaiting`: the fewest own requests that await their first token, ties at random.

Decoding requests wait for nobody, so what predicts TTFT is who is before the first token. Purely local: no telemetry
can mislead it. It does not know prompt sizes, speeds or other routers.
"""

from collections.abc import Sequence

from evenload.routing.least import least
from evenload.routing.policy import Choice, InstanceView, Request, Rng


class LeastAwaiting:
    """Minimum of own awaiting over all candidates."""

    name = "least-awaiting"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return one of those with the fewest."""
        return least([float(view.awaiting) for view in candidates], rng)
