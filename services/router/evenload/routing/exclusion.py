"""Who may be chosen at all.

Reasons are ranked: when they would leave nobody, the mildest are waived first, so that the usable set never collapses
while an instance might answer. An instance that left is never waived. Of those who remain, some may be in reserve
(`tiers.py`).
"""

from collections.abc import Sequence

from evenload.routing.policy import InstanceView, Request
from evenload.routing.tiers import RESERVE, serving

LEFT = "left"
WAIVED_FIRST = ("cooling_long_prompt", "draining", "tried", "quota", "not_ready")


def exclusion(view: InstanceView, request: Request, now_ms: int) -> str:
    """Return why an instance may not serve the request, or an empty string."""
    state = view.state
    if state.left_ms is not None:
        return LEFT
    if not state.ready:
        return "not_ready"
    if view.instance in request.tried:
        return "tried"
    if state.draining:
        return "draining"
    return _cooling(view, request) if now_ms < state.cooling_until_ms else ""


def _cooling(view: InstanceView, request: Request) -> str:
    if view.state.cooling_cause == "quota":
        return "quota"
    return "cooling_long_prompt" if request.prompt_tokens >= view.config.long_prompt_tokens else ""


def eligible(
    views: Sequence[InstanceView], request: Request, now_ms: int, spill_over_ms: float | None = None
) -> tuple[list[int], list[str]]:
    """Return the indices that may be chosen, and the reason per instance of those that may not (empty otherwise)."""
    usable, reasons = _usable(views, request, now_ms)
    if not usable or _one_tier(views):
        return usable, reasons
    chosen = serving(views, usable, request, now_ms, spill_over_ms)
    for index in usable:
        if index not in chosen:
            reasons[index] = RESERVE
    return chosen, reasons


def _one_tier(views: Sequence[InstanceView]) -> bool:
    first = views[0].priority
    for view in views:  # noqa: SIM110 - `any` with a generator takes thrice as long, for each request
        if view.priority != first:
            return False
    return True


def _usable(views: Sequence[InstanceView], request: Request, now_ms: int) -> tuple[list[int], list[str]]:
    reasons = [exclusion(view, request, now_ms) for view in views]
    if not any(reasons):
        return list(range(len(reasons))), reasons
    for waived in ("", *WAIVED_FIRST):
        reasons = ["" if reason == waived else reason for reason in reasons]
        indices = [index for index, reason in enumerate(reasons) if not reason]
        if indices:
            return indices, reasons
    return [], reasons
