"""Tiers: who serves by priority, who is in reserve, and who is passed over.

Instances of the lowest priority number serve, as long as one of their tier can be expected to answer (`recovery.py`).
If none can, the tier is passed over and the next one serves, save for the requests that find out whether an instance
answers again: those go to it alone. The next tier joins, so that the policy chooses among both, while the best
predicted TTFT of those who serve is over the pool's limit, or when one of them has failed this very request; once two
have, their tier is passed over. For the limit

    predicted = base + token * work                                 as in `backlog.py`
    seen      = slowness * (predicted + slack) - slack              beyond noise; `slowness.py` the other way round

so it follows the answers and the ages of waiting requests within the time that the slowness takes, and a queue that is
known counts once. Before anything has been learned only those ages count: what was never asked is asked first.
Without a limit a reserve is for outages only. What it does not handle: what a request costs in money.
"""

from collections.abc import Sequence

from evenload.routing.backlog import expect
from evenload.routing.policy import InstanceView, Request
from evenload.routing.recovery import SLOW_FROM, fit, ramping, to_probe
from evenload.scoring.ewma import faded
from evenload.scoring.slowness import RATIO_MAX

RESERVE = "reserve"
PASSED_OVER = "passed_over"
FAILED_MAX = 2  # failures of one request after which it leaves a tier, at the last of the usual three attempts


def serving(
    views: Sequence[InstanceView],
    usable: Sequence[int],
    request: Request,
    now_ms: int,
    spill_over_ms: float | None,
) -> list[int]:
    """Return which of the usable indices serve, rising; all of them when no tier can be expected to answer."""
    chosen: list[int] = []
    for tier in sorted({views[index].priority for index in usable}):
        members = [index for index in usable if views[index].priority == tier]
        failed = _failed(views, request, tier) if request.tried else 0
        answering = [index for index in members if fit(views[index], now_ms)]
        if answering and not failed:
            chosen += members  # also who fails: to find out about one of many is the policy's business
        elif answering and failed < FAILED_MAX:
            chosen += answering
            continue
        elif not answering and not request.tried:
            answering = [index for index in members if ramping(views[index], now_ms)]
            chosen += answering
            if not answering and not chosen:
                probe = to_probe(views, members, request, now_ms)
                if probe >= 0:
                    return [probe]
        else:
            continue
        if answering and (
            spill_over_ms is None or any(_within(views[index], request, now_ms, spill_over_ms) for index in answering)
        ):
            break
    return sorted(chosen) or list(usable)


def why_not(views: Sequence[InstanceView], chosen: Sequence[int], index: int) -> str:
    """Return why a usable instance is not among the chosen."""
    return RESERVE if views[index].priority > max(views[one].priority for one in chosen) else PASSED_OVER


def _failed(views: Sequence[InstanceView], request: Request, tier: int) -> int:
    """Return how many of the tier have failed this request."""
    return len([view for view in views if view.priority == tier and view.instance in request.tried])


def _within(view: InstanceView, request: Request, now_ms: int, limit_ms: float) -> bool:
    state, config = view.state, view.config
    ttft_ms = expect(view, request, now_ms).ttft_ms
    slowness = state.slowness
    if ttft_ms is None:
        ttft_ms = faded(state.live_ttft_ms, now_ms - state.live_at_ms, config) or 0.0
    elif slowness > SLOW_FROM:
        ttft_ms = slowness * (ttft_ms + config.slack_ms) - config.slack_ms
        if slowness > 0.5 * RATIO_MAX and state.live_ttft_ms is not None and state.live_ttft_ms > ttft_ms:
            ttft_ms = state.live_ttft_ms  # ratios end at `RATIO_MAX`: what was seen may be more than they can say
    return ttft_ms <= limit_ms
