"""What the scorer publishes: the scores and compact states that routers build their view on."""

from typing import Annotated

from msgspec import Meta, Struct

from evenload.schemas.state import InstanceState
from evenload.schemas.telemetry import Cause, Count, LogTime, Score, Term


class InstanceSnapshot(Struct, frozen=True, kw_only=True):
    """One instance at `now_ms` of its batch.

    Attributes:
        score: published health score, 0..100, after damping.
        raw: the same before damping.
        ttft, error, queue: the three terms of the formula, each 0..1.
        state: compact state (no watermarks, no loads), the base that routers fold their own tail onto.
        digest: of the config that it was computed with.
        replicas: router replicas with a load that has not expired; the four sums are over them.
    """

    score: Score
    raw: Score
    ttft: Term
    error: Term
    queue: Term
    state: InstanceState
    digest: Cause
    replicas: Count = 0
    in_flight: Count = 0
    awaiting: Count = 0
    in_flight_tokens: Count = 0
    awaiting_tokens: Count = 0


class SnapshotBatch(Struct, frozen=True, kw_only=True, tag_field="type", tag="snapshots"):
    """One record on `evenload.snapshots`: the instances of one partition that changed since the last one.

    Attributes:
        partition: telemetry partition (the snapshots partition is the same).
        as_of: telemetry offset up to which all snapshots in it are true.
        now_ms: log time at which they were taken.
        linger_ms: advised linger for producers of this partition.
        sequences: last sequence applied per producer incarnation, for the producers heard since the last record (the
            first record after a start has all of them). It lets a router drop a batch whose offset it never learnt.
        scorer: name of the worker that wrote it.
    """

    v: int
    partition: Count
    as_of: Annotated[int, Meta(ge=-1)]
    now_ms: LogTime
    linger_ms: Count
    sequences: dict[int, int]
    snapshots: list[InstanceSnapshot]
    scorer: Annotated[str, Meta(max_length=255)] = ""
