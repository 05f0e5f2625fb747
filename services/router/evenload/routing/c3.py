"""`c3`: cubic replica selection (Suresh et al., NSDI 2015, "C3: cutting tail latency in cloud data stores").

    cost = R - 1/mu + q^3 / mu        q = 1 + requests outstanding + queue length; the least of all

R is the response time, 1/mu the service time. Approximated: R is the EWMA of TTFT in time; outstanding are own requests
and, where C3 multiplies its own by the number of clients, the others' by snapshot; the queue is the engine's gauge; the
service time is R over (1 + queue). Rate control is left out.
"""

from collections.abc import Sequence

from evenload.routing.least import least
from evenload.routing.policy import Choice, InstanceView, Request, Rng
from evenload.scoring.ewma import faded

UNMEASURED_MS = 1.0


class C3:
    """Minimum of the cubic cost."""

    name = "c3"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the cheapest."""
        return least([_cost(view, now_ms) for view in candidates], rng)


def _cost(view: InstanceView, now_ms: int) -> float:
    state = view.state
    response_ms = faded(state.live_ttft_ms, now_ms - state.live_at_ms, view.config) or UNMEASURED_MS
    waiting = state.waiting or 0
    service_ms = response_ms / (1 + waiting)
    queue = 1.0 + view.in_flight + view.others_in_flight + waiting
    return response_ms - service_ms + queue * queue * queue * service_ms
