"""The fold's state of one instance; `evenload.scoring` is the only code that changes one.

Not frozen: the fold works on a private copy (a shallow struct copy costs a fraction of rebuilding it) and hands that
out; whoever holds a state treats it as a value.
"""

from msgspec import Struct, field

WINDOW_SECONDS = 10


class Load(Struct, frozen=True, array_like=True, gc=False):
    """What one router replica reported last for an instance; valid for some seconds of log time from `at_ms`."""

    in_flight: int
    awaiting: int
    in_flight_tokens: int
    awaiting_tokens: int
    at_ms: int


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
        window_s: log second of the newest bucket of `ok` and `err` (rings indexed by second modulo 10).
        cooling_until_ms: the error term is 1 until then; `cooling_hits` counts saturations in a row.
        gauges_ms: when the gauges were reported; None before.
        left_ms: when the instance left, None while it is a member.
        watermarks: last sequence applied per producer incarnation, least recently active first.
        loads: last report per router incarnation.
    """

    instance: str
    v: int = 1
    generation: int = 0
    as_of: int = -1
    log_ms: int = 0
    tick: int = 0
    damped: float = 30.0
    ewma_ttft_ms: float | None = None
    live_ttft_ms: float | None = None
    live_at_ms: int = 0
    window_s: int = 0
    ok: list[int] = field(default_factory=lambda: [0] * WINDOW_SECONDS)
    err: list[int] = field(default_factory=lambda: [0] * WINDOW_SECONDS)
    ok_sum: int = 0
    err_sum: int = 0
    cooling_until_ms: int = 0
    cooling_hits: int = 0
    cooling_cause: str = ""
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    prefix_hits: int | None = None
    prefix_queries: int | None = None
    preemptions: int | None = None
    started_s: float | None = None
    gauges_ms: int | None = None
    ready: bool = True
    draining: bool = False
    left_ms: int | None = None
    cause: str = ""
    first_tokens: int = 0
    overdue: int = 0
    successes: int = 0
    errors: int = 0
    saturations: int = 0
    neutral: int = 0
    restarts: int = 0
    aged: int = 0
    older_generation: int = 0
    watermarks: dict[int, int] = {}
    loads: dict[int, Load] = {}
