"""What producers say: events about instances, coalesced into batches.

One record on `evenload.telemetry` is one `Batch`: the events of one producer for all its instances of one partition.
Events carry durations, never wall-clock times. Bounds sit in the types, so that no accepted event can make a score
infinite: a message outside them does not decode.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

MILLISECONDS_MAX = 1e9  # 11 days; beyond it a duration is a fault of the producer
COUNT_MAX = 2**53  # exact in a double, so that any tool can read it

Milliseconds = Annotated[float, Meta(ge=0, le=MILLISECONDS_MAX)]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Cause = Annotated[str, Meta(max_length=64)]
Score = Annotated[float, Meta(ge=0, le=100)]
Term = Annotated[float, Meta(ge=0, le=1)]
LogTime = Annotated[int, Meta(ge=0, le=COUNT_MAX)]  # milliseconds of log time


class _Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """Fields of every event.

    Attributes:
        instance: id of the engine or provider endpoint that the event is about.
        gen: generation of the instance that the producer knew; older ones are only counted.
        at: milliseconds from the opening of the batch to the event, so that an auditor can redo the producer's view.
    """

    instance: Name
    gen: Count = 0
    at: Count = 0


class FirstToken(_Event, frozen=True, tag="first_token"):
    """The first content token of a request arrived `ttft_ms` after its attempt was sent.

    Attributes:
        predicted_ms: the TTFT that its router expected, by what it knew until now; the slowness is judged by it.
        work: prefill work before its first token when it was sent, in prompt tokens, its own included.
    """

    ttft_ms: Milliseconds
    prompt_tokens: Count = 0
    predicted_ms: Milliseconds | None = None
    work: Count = 0


class Overdue(_Event, frozen=True, tag="overdue"):
    """A request still waits for its first token after `age_ms`: a lower bound of its TTFT (right-censored)."""

    age_ms: Milliseconds
    prompt_tokens: Count = 0
    predicted_ms: Milliseconds | None = None


OutcomeKind = Literal[
    "ok",
    "http_error",
    "stream_error",
    "upstream_cut",
    "connect_error",
    "timeout",
    "saturated",
    "quota",
    "rejected",
    "client_gone",
]


class Outcome(_Event, frozen=True, tag="outcome"):
    """How an attempt ended.

    Attributes:
        kind: `ok` is a success; `http_error` (5xx), `stream_error` (error event inside a 200 stream), `upstream_cut`
            (no finish reason), `connect_error` and `timeout` are the instance's fault; `saturated` and `quota` cool
            it; `rejected` (a client's 4xx) and `client_gone` say nothing about the instance.
        status: HTTP status, 0 when there was none.
        cause: short stable code of the reason, for people.
        retry_after_ms: what the instance asked for, or how long such a refusal is known to last.
        ttft_ms: None when no content arrived or when the answer was not a stream.
        request_id, attempt: of the decision record that led here.
    """

    kind: OutcomeKind
    status: Annotated[int, Meta(ge=0, le=999)] = 0
    cause: Cause = ""
    retry_after_ms: Milliseconds | None = None
    ttft_ms: Milliseconds | None = None
    duration_ms: Milliseconds = 0.0
    prompt_tokens: Count = 0
    output_tokens: Count = 0
    request_id: Annotated[str, Meta(max_length=128)] = ""
    attempt: Count = 0


class RouterLoad(_Event, frozen=True, tag="router_load"):
    """What one router replica has under way at one instance; it replaces the replica's previous one."""

    in_flight: Count = 0
    awaiting: Count = 0
    in_flight_tokens: Count = 0
    awaiting_tokens: Count = 0


class EngineGauges(_Event, frozen=True, tag="engine_gauges"):
    """What the engine says of itself when polled; an absent value is unknown, not zero.

    Attributes:
        kv_usage: share of KV-cache blocks in use, 0..1.
        started_s: the engine's `process_start_time_seconds`; only ever compared for equality.
    """

    running: Count | None = None
    waiting: Count | None = None
    kv_usage: Annotated[float, Meta(ge=0, le=1)] | None = None
    prefix_hits: Count | None = None
    prefix_queries: Count | None = None
    preemptions: Count | None = None
    started_s: Annotated[float, Meta(ge=0, le=1e12)] | None = None


class Membership(_Event, frozen=True, tag="membership"):
    """An instance joined the fleet, leaves it, or changed readiness."""

    change: Literal["joined", "draining", "left", "ready", "not_ready"]
    cause: Cause = ""


Event = FirstToken | Overdue | Outcome | RouterLoad | EngineGauges | Membership


class Batch(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="batch"):
    """One telemetry record.

    Attributes:
        v: wire version.
        producer: configured name of the producer, for people.
        incarnation: random 63-bit number drawn at process start; never ordered.
        seq: 0, 1, 2 ... per incarnation and partition; with `incarnation` it makes a re-sent batch recognisable.
        age_ms: how long ago the batch was opened when it was first sent, on the producer's monotonic clock.
        view_ms: the producer's estimate of the log's clock at that opening, for auditors; no fold reads it as time.
        events: in the order in which they were observed.
    """

    producer: Name
    incarnation: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    seq: Count
    events: list[Event]
    age_ms: Milliseconds = 0.0
    view_ms: Annotated[int, Meta(ge=0, le=2**53)] = 0
    v: Annotated[int, Meta(ge=0)]
