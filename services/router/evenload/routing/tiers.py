"""Tiers: who serves by priority, and who is in reserve.

Instances of the lowest priority number serve. The next tier joins them, so that both are candidates, while the best
predicted TTFT of those who serve is over the pool's limit, or when none of them is usable. For that

    predicted = (base + token * work) * max(1, slowness / 1.5)      as in `backlog.py` and `slowness.py`

and whoever cools after a 429 or 503 is over any limit. Where nothing has been learned yet, nothing is over the limit.
Without a limit a reserve is for outages only. What it does not handle: what a request costs in money.
"""

from collections.abc import Sequence

from evenload.routing.backlog import expect
from evenload.routing.policy import InstanceView, Request

RESERVE = "reserve"
SLOW_FROM = 1.5  # slowness that is still noise, as for `predictive`


def serving(
    views: Sequence[InstanceView],
    usable: Sequence[int],
    request: Request,
    now_ms: int,
    spill_over_ms: float | None,
) -> list[int]:
    """Return which of the usable indices serve; the others are in reserve."""
    tiers = sorted({views[index].priority for index in usable})
    last = tiers[0]
    for tier in tiers:
        last = tier
        members = [views[index] for index in usable if views[index].priority == tier]
        if spill_over_ms is None or any(_within(view, request, now_ms, spill_over_ms) for view in members):
            break
    return [index for index in usable if views[index].priority <= last]


def _within(view: InstanceView, request: Request, now_ms: int, limit_ms: float) -> bool:
    if now_ms < view.state.cooling_until_ms:
        return False
    predicted_ms = expect(view, request, now_ms).ttft_ms
    if predicted_ms is None:
        return True
    slowness = view.state.slowness
    return (predicted_ms * (slowness / SLOW_FROM) if slowness > SLOW_FROM else predicted_ms) <= limit_ms
