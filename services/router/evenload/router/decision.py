"""The record of one decision: all that an auditor needs to redo it."""

from collections.abc import Sequence

from evenload.router.pool import Pool
from evenload.router.ports import Ask
from evenload.routing import Choice, FleetView, InstanceView, Request
from evenload.schemas import Candidate, Decision
from evenload.schemas.codec import WIRE_VERSION


def describe(
    *,
    ask: Ask,
    attempt: int,
    pool: Pool,
    request: Request,
    now_ms: int,
    views: Sequence[InstanceView],
    excluded: Sequence[str],
    indices: Sequence[int],
    choice: Choice,
    draws: list[float],
    view: FleetView,
    router: str,
    incarnation: int,
    code_digest: str,
) -> Decision:
    """Return the record of a choice, before it is booked.

    `views` are the pool's instances in order, `excluded` the reason of each or an empty string; `indices` are those of
    `views` that the policy was given, and `choice` refers to these. `view` is the fleet view that `views` were read
    from.
    """
    costs: list[float | None] = [*choice.costs]
    if len(indices) != len(views):
        costs = [None] * len(views)
        for index, cost in zip(indices, choice.costs, strict=True):
            costs[index] = cost
    return Decision(
        v=WIRE_VERSION,
        request_id=ask.request_id,
        attempt=attempt,
        router=router,
        incarnation=incarnation,
        model=ask.model,
        pool=pool.name,
        policy=pool.policy.name,
        now_ms=now_ms,
        prompt_tokens=request.prompt_tokens,
        ordinal=request.ordinal,
        winner=views[indices[choice.index]].instance,
        reason=choice.reason,
        probability=choice.probability,
        draws=draws,
        candidates=list(map(_candidate, views, costs, excluded)),
        offsets=view.offsets(pool.instances),
        tails=view.tails(pool.instances),
        config_digest=pool.config_digest,
        code_digest=code_digest,
        tried=list(request.tried),
        spill_over_ms=pool.spill_over_ms,
        prefix=request.prefix,
    )


def _candidate(view: InstanceView, cost: float | None, excluded: str) -> Candidate:
    return Candidate(
        instance=view.instance,
        in_flight=view.in_flight,
        awaiting=view.awaiting,
        awaiting_tokens=view.awaiting_tokens,
        others_in_flight=view.others_in_flight,
        score=view.score,
        cost=cost,
        excluded=excluded,
        in_flight_tokens=view.in_flight_tokens,
        others_awaiting=view.others_awaiting,
        others_in_flight_tokens=view.others_in_flight_tokens,
        others_awaiting_tokens=view.others_awaiting_tokens,
        cached_tokens=view.cached_tokens,
        weight=view.weight,
        priority=view.priority,
    )
