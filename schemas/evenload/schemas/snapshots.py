"""What the scorer publishes: the scores and compact states that routers build their view on."""

from msgspec import Struct

from evenload.schemas.state import InstanceState


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

    score: float
    raw: float
    ttft: float
    error: float
    queue: float
    state: InstanceState
    digest: str
    replicas: int = 0
    in_flight: int = 0
    awaiting: int = 0
    in_flight_tokens: int = 0
    awaiting_tokens: int = 0


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
    partition: int
    as_of: int
    now_ms: int
    linger_ms: int
    sequences: dict[int, int]
    snapshots: list[InstanceSnapshot]
    scorer: str = ""
