"""Who may be chosen at all.

Reasons are ranked: when they would leave nobody, the mildest are waived first, so that the usable set never collapses
while an instance might answer. An instance that left is never waived.
"""

from collections.abc import Sequence

from evenload.routing.policy import InstanceView, Request

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


def eligible(views: Sequence[InstanceView], request: Request, now_ms: int) -> tuple[list[int], list[str]]:
    """Return the indices that may be chosen, and the reason per instance of those that may not (empty otherwise)."""
    reasons = [exclusion(view, request, now_ms) for view in views]
    if not any(reasons):
        return list(range(len(reasons))), reasons
    for waived in ("", *WAIVED_FIRST):
        reasons = ["" if reason == waived else reason for reason in reasons]
        indices = [index for index, reason in enumerate(reasons) if not reason]
        if indices:
            return indices, reasons
    return [], reasons
