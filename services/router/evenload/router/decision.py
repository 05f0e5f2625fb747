"""The record of one decision: all that an auditor needs to redo it."""

from collections.abc import Sequence

from msgspec import Struct

from evenload.router.pool import Pool
from evenload.router.ports import Ask
from evenload.routing import Choice, InstanceView, Request
from evenload.schemas import Candidate, Decision, Tail
from evenload.schemas.codec import WIRE_VERSION


class Decided(Struct, gc=False):
    """A choice, as it was before it was booked; nothing of it changes afterwards.

    Attributes:
        pool: of which the name, the policy and the like are recorded.
        views: the pool's instances in order.
        excluded: why each may not be chosen, or an empty string.
        indices: those of `views` that the policy was given; `choice` refers to these.
        draws: the uniforms drawn.
        offsets, tails: of the fleet view that `views` were read from.
    """

    ask: Ask
    attempt: int
    pool: Pool
    request: Request
    now_ms: int
    views: Sequence[InstanceView]
    excluded: Sequence[str]
    indices: Sequence[int]
    choice: Choice
    draws: list[float]
    offsets: dict[int, int]
    tails: list[Tail]
    router: str
    incarnation: int
    code_digest: str

    def record(self) -> Decision:
        """Return the record."""
        views, indices, choice, pool, request = self.views, self.indices, self.choice, self.pool, self.request
        costs: list[float | None] = [*choice.costs]
        if len(indices) != len(views):
            costs = [None] * len(views)
            for index, cost in zip(indices, choice.costs, strict=True):
                costs[index] = cost
        return Decision(
            v=WIRE_VERSION,
            request_id=self.ask.request_id,
            attempt=self.attempt,
            router=self.router,
            incarnation=self.incarnation,
            model=self.ask.model,
            pool=pool.name,
            policy=pool.policy.name,
            now_ms=self.now_ms,
            prompt_tokens=request.prompt_tokens,
            ordinal=request.ordinal,
            winner=views[indices[choice.index]].instance,
            reason=choice.reason,
            probability=choice.probability,
            draws=self.draws,
            candidates=list(map(_candidate, views, costs, self.excluded)),
            offsets=self.offsets,
            tails=self.tails,
            config_digest=pool.config_digest,
            code_digest=self.code_digest,
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
