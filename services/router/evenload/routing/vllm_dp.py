"""`vllm-dp`: vLLM's balancing over data-parallel engines: the least of 4 * waiting + running, ties at random.

vLLM's client adds each request it sends to its copy of the counts until the next report. Approximated: the counts are
the larger of the polled gauge and the requests that routers know of (awaiting for waiting, in flight for running).
"""

from collections.abc import Sequence

from evenload.routing.least import least
from evenload.routing.policy import Choice, InstanceView, Request, Rng

WAITING_WEIGHT = 4.0


class VllmDp:
    """Minimum of 4 * waiting + running."""

    name = "vllm-dp"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the least loaded."""
        return least([_cost(view) for view in candidates], rng)


def _cost(view: InstanceView) -> float:
    waiting = max(view.state.waiting or 0, view.awaiting + view.others_awaiting)
    running = max(view.state.running or 0, view.in_flight + view.others_in_flight)
    return WAITING_WEIGHT * waiting + running
