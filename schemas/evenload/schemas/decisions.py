"""Why each attempt went where it went, with all that a replay needs; and records that could not be read."""

from typing import Annotated

from msgspec import Meta, Struct

from evenload.schemas.telemetry import Cause, Count, LogTime, Milliseconds, Name, Score, Term

Label = Annotated[str, Meta(max_length=255)]
Cost = Annotated[float, Meta(ge=-1e18, le=1e18)]  # finite; no policy has a cost near that
Weight = Annotated[float, Meta(gt=0, le=1000)]
Uniform = Annotated[float, Meta(ge=0, lt=1)]


class Candidate(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One instance of the pool as the policy saw it, in the order in which the policy saw it.

    Attributes:
        in_flight, awaiting, in_flight_tokens, awaiting_tokens: own; the same of others: other replicas', as of the
            snapshot.
        cached_tokens: prompt tokens that the router thought to be in the instance's prefix cache.
        score: published score in the router's view, 0..100.
        cost: what the policy minimised, None when it was not drawn.
        excluded: empty, or why it could not be chosen.
        weight: its share; it counted as so many instances.
        priority: its tier; higher ones are in reserve.
    """

    instance: Name
    in_flight: Count = 0
    awaiting: Count = 0
    awaiting_tokens: Count = 0
    others_in_flight: Count = 0
    score: Score = 0.0
    cost: Cost | None = None
    excluded: Cause = ""
    in_flight_tokens: Count = 0
    others_awaiting: Count = 0
    others_in_flight_tokens: Count = 0
    others_awaiting_tokens: Count = 0
    cached_tokens: Count = 0
    weight: Weight = 1.0
    priority: Count = 0


class Tail(Struct, frozen=True, kw_only=True, gc=False):
    """Own events of one telemetry partition on top of the snapshot: batches `first` to `last`.

    Attributes:
        last_events: how many events of batch `last` existed at the time of the decision.
    """

    partition: Count
    first: Count
    last: Count
    last_events: Count


class Decision(Struct, frozen=True, kw_only=True, tag_field="type", tag="decision"):
    """One attempt of one request.

    Attributes:
        incarnation: of the router, as in its telemetry batches.
        now_ms: log time of the router's view.
        offsets: per snapshots partition the offset of the last record consumed.
        ordinal: how many requests the router dispatched to the pool before, retries not counted.
        draws: the raw uniforms the policy took, in order.
        probability: of this choice given the view.
        config_digest: of the pool's scoring config; `code_digest` of the pure packages.
        reason: one of the policy's fixed reason codes.
        tried: instances that earlier attempts of the request used.
        spill_over_ms: expected TTFT beyond which the next tier was to join; None: only for outages.
        prefix: keyed hash of how the prompt begins, 48 bits, if it was to meet others that begin alike; 0 if not.
    """

    v: int
    request_id: Label
    attempt: Count
    router: Label
    incarnation: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    model: Label
    pool: Label
    policy: Label
    now_ms: LogTime
    prompt_tokens: Count
    ordinal: Count
    winner: Label
    reason: Cause
    probability: Term
    draws: list[Uniform]
    candidates: list[Candidate]
    offsets: dict[int, int]
    tails: list[Tail]
    config_digest: Cause
    code_digest: Cause
    deadline_ms: Milliseconds | None = None
    tried: list[Name] = []
    spill_over_ms: Milliseconds | None = None
    prefix: Count = 0


class DeadLetter(Struct, frozen=True, kw_only=True, tag_field="type", tag="dead_letter"):
    """A record that could not be applied: its origin, the reason, and (up to a bound) its bytes."""

    v: int
    topic: Label
    partition: Count
    offset: Count
    reason: Annotated[str, Meta(max_length=2048)]
    size: Count
    payload: bytes
