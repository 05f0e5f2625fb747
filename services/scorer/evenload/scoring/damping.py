"""What the state says at a grid tick, and how log time moves it.

The published score falls at once and rises at most `damping_per_s` points per second: at each tick the damped score is
min(raw, damped + a tenth of that). Time moves tick by tick, so one big step and many small ones give identical bits.
"""

from evenload.schemas.state import WINDOW_SECONDS, InstanceState
from evenload.scoring.clock import TICK_MS, TICKS_PER_SECOND, tick_of
from evenload.scoring.config import ScoringConfig
from evenload.scoring.ewma import faded
from evenload.scoring.health import combine, error_term, queue_term, ttft_term
from evenload.scoring.window import expire


def ttft_estimate_ms(state: InstanceState, now_ms: int, config: ScoringConfig) -> float | None:
    """Return the TTFT that the latency term reads, or None while it is unknown."""
    if config.evidence == "published":
        return state.ewma_ttft_ms
    return faded(state.live_ttft_ms, now_ms - state.live_at_ms, config)


def terms(state: InstanceState, tick: int, config: ScoringConfig) -> tuple[float, float, float]:
    """Return the latency, error and queue terms, each 0..1, at a tick to which the state has been advanced."""
    now_ms = tick * TICK_MS
    if now_ms < state.cooling_until_ms:
        error = 1.0
    elif state.err_sum:
        error = error_term(state.err_sum / (state.err_sum + state.ok_sum), config)
    else:
        error = 0.0
    gauges_ms = state.gauges_ms
    if gauges_ms is None or now_ms - gauges_ms >= config.gauges_expire_ms:
        queue = 0.0
    else:
        queue = queue_term(state.waiting, state.kv_usage, config)
    return ttft_term(ttft_estimate_ms(state, now_ms, config), config), error, queue


def raw_score(state: InstanceState, tick: int, config: ScoringConfig) -> float:
    """Return the score before damping; 0 for an instance that left or is not ready."""
    if state.left_ms is not None or not state.ready:
        return 0.0
    ttft, error, queue = terms(state, tick, config)
    return combine(ttft, error, queue, config)


def fall(state: InstanceState, config: ScoringConfig) -> None:
    """Let the damped score fall to the raw one at the state's tick."""
    raw = raw_score(state, state.tick, config)
    state.damped = min(state.damped, raw)


def advance(state: InstanceState, now_ms: int, config: ScoringConfig) -> None:
    """Move a state that the fold owns to the last grid tick at or before `now_ms`; never backwards."""
    last = tick_of(now_ms)
    if last <= state.tick:
        return
    step = config.damping_per_s / TICKS_PER_SECOND
    settled = last if last - state.tick < TICKS_PER_SECOND else _settled_tick(state, step, config)
    for tick in range(state.tick + 1, min(last, settled) + 1):
        expire(state, tick // TICKS_PER_SECOND)
        raw = raw_score(state, tick, config)
        risen = state.damped + step
        state.damped = raw if raw <= risen else risen
    state.tick = last
    if last > settled:  # nothing can change any more: the loop has reached the raw score, and it stays
        expire(state, last // TICKS_PER_SECOND)
        state.damped = raw_score(state, last, config)


def _settled_tick(state: InstanceState, step: float, config: ScoringConfig) -> int:
    """Return a tick from which, without events, the damped score equals a raw score that no longer changes."""
    still_ms = max(
        state.tick * TICK_MS,
        (state.window_s + WINDOW_SECONDS + 1) * 1000,
        state.cooling_until_ms,
        0 if state.gauges_ms is None else state.gauges_ms + config.gauges_expire_ms,
        0 if state.live_ttft_ms is None else state.live_at_ms + config.evidence_expire_ms,
    )
    return tick_of(still_ms) + 2 + int(100.0 / step)
