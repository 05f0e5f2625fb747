"""How many times slower than predicted an instance is: evidence in time, right-censored.

    ratio = (observed + slack) / (predicted + slack), 1..100

Upwards the ratio is averaged, downwards its inverse, the speed. A sample that stands for dt milliseconds has weight
dt / (tau + dt), tau being `slow_rise_ms` or `slow_fall_ms`, and upwards it stands for `slow_span_ms` at most. So one
isolated good probe all but clears an instance (after 4 s: from 17 to 1.4), a good request among many does not, and one
odd request convicts nobody. The age of a waiting request is a lower bound of what it will take and can only raise.
Without evidence nothing fades: a faded conviction is re-tested by many requests at once, which harms them all.
"""

from evenload.schemas.state import InstanceState
from evenload.scoring.config import ScoringConfig

RATIO_MAX = 100.0


def ratio_of(observed_ms: float, predicted_ms: float, config: ScoringConfig) -> float:
    """Return observed over predicted, 1..100."""
    ratio = (observed_ms + config.slack_ms) / (predicted_ms + config.slack_ms)
    if ratio <= 1.0:
        return 1.0
    return ratio if ratio < RATIO_MAX else RATIO_MAX


def witness(state: InstanceState, ratio: float, config: ScoringConfig, *, censored: bool = False) -> None:
    """Take a ratio, 1..100, into a state that the fold owns; a censored one is a lower bound."""
    span_ms = float(state.log_ms - state.slow_at_ms)
    span_ms = max(span_ms, config.sample_ms_min)
    old = state.slowness
    if ratio > old:
        span_ms = min(span_ms, config.slow_span_ms)
        state.slowness = old + (ratio - old) * (span_ms / (config.slow_rise_ms + span_ms))
    elif not censored:
        speed = 1.0 / old
        state.slowness = 1.0 / (speed + (1.0 / ratio - speed) * (span_ms / (config.slow_fall_ms + span_ms)))
    state.slow_at_ms = state.log_ms
