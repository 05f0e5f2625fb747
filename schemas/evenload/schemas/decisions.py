"""Why each attempt went where it went, with all that a replay needs; and records that could not be read."""

from msgspec import Struct


class Candidate(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One instance of the pool as the policy saw it, in the order in which the policy saw it.

    Attributes:
        score: published score in the router's view, 0..100.
        cost: what the policy minimised, None when it was not drawn.
        excluded: empty, or why it could not be chosen.
    """

    instance: str
    in_flight: int = 0
    awaiting: int = 0
    awaiting_tokens: int = 0
    score: float = 0.0
    cost: float | None = None
    excluded: str = ""


class Tail(Struct, frozen=True, kw_only=True, gc=False):
    """Own events of one telemetry partition on top of the snapshot: batches `first` to `last`.

    Attributes:
        last_events: how many events of batch `last` existed at the time of the decision.
    """

    partition: int
    first: int
    last: int
    last_events: int


class Decision(Struct, frozen=True, kw_only=True, tag_field="type", tag="decision"):
    """One attempt of one request.

    Attributes:
        incarnation: of the router, as in its telemetry batches.
        now_ms: log time of the router's view.
        offsets: per snapshots partition the offset of the last record consumed.
        ordinal: how many attempts the router dispatched to the pool before.
        draws: the raw uniforms the policy took, in order.
        probability: of this choice given the view.
        config_digest: of the pool's scoring config; `code_digest` of the pure packages.
        reason: one of the policy's fixed reason codes.
        tried: instances that earlier attempts of the request used.
    """

    v: int
    request_id: str
    attempt: int
    router: str
    incarnation: int
    model: str
    pool: str
    policy: str
    now_ms: int
    prompt_tokens: int
    ordinal: int
    winner: str
    reason: str
    probability: float
    draws: list[float]
    candidates: list[Candidate]
    offsets: dict[int, int]
    tails: list[Tail]
    config_digest: str
    code_digest: str
    deadline_ms: float | None = None
    tried: list[str] = []


class DeadLetter(Struct, frozen=True, kw_only=True, tag_field="type", tag="dead_letter"):
    """A record that could not be applied: its origin, the reason, and (up to a bound) its bytes."""

    v: int
    topic: str
    partition: int
    offset: int
    reason: str
    size: int
    payload: bytes
