"""Who of a tier can be expected to answer, and how one that failed is found to answer again.

An instance is fit unless it cools after a 429 or 503, or fails: in the ten seconds of its error window, or in the
newest two alone (from two failures on: then an outage shows in a second, however well it went before), it had as many
failures as successes or more. When the window is empty, what was heard last counts: `slow_at_ms` beyond `live_at_ms`
was a failure, for first tokens and ages of waiting requests set both.

Of one that fails and has answered since, as many requests as it answered may await their first token: 1, then 2, and
so on, until its successes outnumber its failures. One that has not is probed by a request that finds nobody awaiting
there: at most one in `PROBE_EVERY`, and none for `PROBE_AFTER_S` after the tier's last failure, so that a tier which is
down costs a busy pool a detour every few seconds and a quiet one no more than a share. What it does not handle: an
instance that keeps its requests waiting without failing; that is for the limit of the TTFT.
"""

from collections.abc import Sequence

from evenload.routing.policy import InstanceView, Request
from evenload.schemas import InstanceState
from evenload.schemas.state import WINDOW_SECONDS

PROBE_EVERY = 4
PROBE_AFTER_S = 3
SLOW_FROM = 1.5  # slowness that is still noise, as for `predictive`


def fit(view: InstanceView, now_ms: int) -> bool:
    """Tell whether an instance that is usable can be expected to answer; one that was never asked can."""
    state = view.state
    if now_ms < state.cooling_until_ms:
        return False
    if state.err_sum:
        return not _fails(state)
    return state.ok_sum > 0 or not _failed_last(state)


def ramping(view: InstanceView, now_ms: int) -> bool:
    """Tell whether an instance that is not fit has answered since it failed, and so may have one request more."""
    state = view.state
    if now_ms < state.cooling_until_ms:
        return False
    answered = _since_failure(state)[1]
    return answered > 0 and view.awaiting <= answered


def to_probe(views: Sequence[InstanceView], members: Sequence[int], request: Request, now_ms: int) -> int:
    """Return the index of the member that the request is to probe, the longest without a failure, or -1."""
    if request.ordinal % PROBE_EVERY != PROBE_EVERY - 1:
        return -1
    found, oldest_s = -1, -1
    for index in members:
        view = views[index]
        age_s = _since_failure(view.state)[0]
        if age_s < PROBE_AFTER_S:
            return -1
        if age_s > oldest_s and now_ms >= view.state.cooling_until_ms and not view.awaiting + view.others_awaiting:
            found, oldest_s = index, age_s
    return found


def _fails(state: InstanceState) -> bool:
    if state.err_sum >= state.ok_sum:
        return True
    newest, before = state.window_s % WINDOW_SECONDS, (state.window_s - 1) % WINDOW_SECONDS
    failures = state.err[newest]
    if failures > 1 and failures >= state.ok[newest]:
        return True
    failures += state.err[before]
    return failures > 1 and failures >= state.ok[newest] + state.ok[before]


def _failed_last(state: InstanceState) -> bool:
    return state.slowness > SLOW_FROM and state.slow_at_ms > state.live_at_ms


def _since_failure(state: InstanceState) -> tuple[int, int]:
    """Return the seconds since the window's last failure, its length if there is none, and the successes since."""
    answered = 0
    for age_s in range(WINDOW_SECONDS if state.err_sum else 0):
        index = (state.window_s - age_s) % WINDOW_SECONDS
        if state.err[index]:
            return age_s, answered
        answered += state.ok[index]
    return WINDOW_SECONDS, answered
