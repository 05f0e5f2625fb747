"""Sliding error window: ten buckets of one second of log time, instance-caused errors and successes only.

error_ratio = errors / (errors + successes), 0 while there is neither. Counts are integers, so the sums are exact.
Both functions change the state they are given; the fold calls them on its private copy.
"""

from evenload.schemas.state import WINDOW_SECONDS, InstanceState


def expire(state: InstanceState, second: int) -> None:
    """Empty the buckets that fall out of the window when log time reaches `second`."""
    passed = second - state.window_s
    if passed <= 0:
        return
    state.window_s = second
    if passed >= WINDOW_SECONDS:
        if state.ok_sum or state.err_sum:
            state.ok, state.err = [0] * WINDOW_SECONDS, [0] * WINDOW_SECONDS
            state.ok_sum = state.err_sum = 0
        return
    for bucket in range(second - passed + 1, second + 1):
        index = bucket % WINDOW_SECONDS
        state.ok_sum -= state.ok[index]
        state.err_sum -= state.err[index]
        state.ok[index] = state.err[index] = 0


def record(state: InstanceState, success: bool) -> None:
    """Count one outcome in the newest bucket."""
    index = state.window_s % WINDOW_SECONDS
    if success:
        state.ok[index] += 1
        state.ok_sum += 1
    else:
        state.err[index] += 1
        state.err_sum += 1
