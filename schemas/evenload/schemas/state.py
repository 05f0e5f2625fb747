"""The fold's state of one instance; `evenload.scoring` is the only code that changes one.

Not frozen: the fold works on a private copy (a shallow struct copy costs a fraction of rebuilding it) and hands that
out; whoever holds a state treats it as a value.
"""

from typing import Annotated

from msgspec import Meta, Struct, field

from evenload.schemas.telemetry import Cause, Count, LogTime, Milliseconds, Name, Score, Term

WINDOW_SECONDS = 10

Moment = Annotated[float, Meta(ge=0, le=1e36)]  # means of products of durations and tokens

Ring = Annotated[list[Count], Meta(min_length=WINDOW_SECONDS, max_length=WINDOW_SECONDS)]


class Load(Struct, frozen=True, array_like=True, gc=False):
    """What one router replica reported last for an instance; valid for some seconds of log time from `at_ms`."""

    in_flight: Count
    awaiting: Count
    in_flight_tokens: Count
    awaiting_tokens: Count
    at_ms: LogTime


class InstanceState(Struct, kw_only=True, tag_field="type", tag="state"):
    """Everything the log says of one instance.

    Times are milliseconds of log time. Snapshots carry the same struct without `watermarks` and `loads`.

    Attributes:
        as_of: offset of the last telemetry record applied, -1 before any.
        log_ms: latest log time applied.
        tick: log time in units of 100 ms up to which windows and damping have been advanced.
        damped: the published score before the current fall is taken into account, 0..100.
        ewma_ttft_ms: per-sample EWMA of finished first tokens (the published figure); None before the first.
        live_ttft_ms: EWMA in time that also takes the ages of waiting requests, as of `live_at_ms`.
        base_ms, token_ms: learned TTFT without and per token of prefill work (`evenload.scoring.prediction`), of which
            `fit_trust` says how much the work explains; valid when `fit_weight`, the weight of samples, is not 0.
            `fit_work` to `fit_ttft_ttft` are the weighted means behind them: of work, of TTFT, of their products.
        slowness: observed over predicted TTFT as of `slow_at_ms` (`evenload.scoring.slowness`).
        window_s: log second of the newest bucket of `ok` and `err` (rings indexed by second modulo 10).
        cooling_until_ms: the error term is 1 until then; `cooling_hits` counts saturations in a row.
        gauges_ms: when the gauges were reported; None before.
        left_ms: when the instance left, None while it is a member.
        watermarks: last sequence applied per producer incarnation, least recently active first.
        loads: last report per router incarnation.
    """

    instance: Name
    v: int = 1
    generation: Count = 0
    as_of: Annotated[int, Meta(ge=-1)] = -1
    log_ms: LogTime = 0
    tick: Count = 0
    damped: Score = 30.0
    ewma_ttft_ms: Milliseconds | None = None
    live_ttft_ms: Milliseconds | None = None
    live_at_ms: LogTime = 0
    window_s: Count = 0
    ok: Ring = field(default_factory=lambda: [0] * WINDOW_SECONDS)
    err: Ring = field(default_factory=lambda: [0] * WINDOW_SECONDS)
    ok_sum: Count = 0
    err_sum: Count = 0
    cooling_until_ms: LogTime = 0
    cooling_hits: Count = 0
    cooling_cause: Cause = ""
    running: Count | None = None
    waiting: Count | None = None
    kv_usage: Term | None = None
    prefix_hits: Count | None = None
    prefix_queries: Count | None = None
    preemptions: Count | None = None
    started_s: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    gauges_ms: LogTime | None = None
    ready: bool = True
    draining: bool = False
    left_ms: LogTime | None = None
    cause: Cause = ""
    first_tokens: Count = 0
    overdue: Count = 0
    successes: Count = 0
    errors: Count = 0
    saturations: Count = 0
    neutral: Count = 0
    restarts: Count = 0
    aged: Count = 0
    older_generation: Count = 0
    base_ms: Milliseconds = 0.0
    token_ms: Milliseconds = 0.0
    fit_trust: Term = 0.0
    fit_weight: Moment = 0.0
    fit_work: Moment = 0.0
    fit_ttft: Moment = 0.0
    fit_work_work: Moment = 0.0
    fit_work_ttft: Moment = 0.0
    fit_ttft_ttft: Moment = 0.0
    slowness: Annotated[float, Meta(ge=1, le=100)] = 1.0
    slow_at_ms: LogTime = 0
    watermarks: dict[int, int] = {}
    loads: dict[int, Load] = {}
