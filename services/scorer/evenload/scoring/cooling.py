"""Cooling after saturation: for some seconds the error term is 1 and long prompts go elsewhere.

A saturated engine (429, 503, KV cache exhausted) is loaded, not broken, so this never enters the error window. It cools
for Retry-After if it said one, else for 3 s, and one second longer, up to 5 s, each time it saturates again soon after.
"""

from evenload.schemas.state import InstanceState
from evenload.scoring.config import ScoringConfig


def cool(state: InstanceState, cause: str, retry_after_ms: float | None, config: ScoringConfig) -> None:
    """Start or extend the cooling of a state that the fold owns, at its log time."""
    now_ms = state.log_ms
    if now_ms >= state.cooling_until_ms:
        again = state.cooling_until_ms > 0 and now_ms - state.cooling_until_ms < config.cooling_ms_max
        state.cooling_hits = state.cooling_hits + 1 if again else 1
    if retry_after_ms is None:
        span_ms = config.cooling_ms + config.cooling_step_ms * (state.cooling_hits - 1)
        span_ms = min(span_ms, config.cooling_ms_max)
    else:
        span_ms = min(int(retry_after_ms), config.cooling_ms_cap)
    state.cooling_until_ms = max(state.cooling_until_ms, now_ms + span_ms)
    state.cooling_cause = cause


def cooling_left_ms(state: InstanceState, now_ms: int) -> int:
    """Return for how long the instance still cools, 0 if it does not."""
    return max(0, state.cooling_until_ms - now_ms)
