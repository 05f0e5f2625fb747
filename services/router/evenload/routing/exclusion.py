"""Who may be chosen at all.

Each instance has at most one reason against it, the gravest that holds. When nobody is without one, the mildest reason
that somebody has is waived, so that the usable set never collapses while an instance might answer:

    cooling_long_prompt   it is busy, and the prompt is long
    draining              it answers, but is to leave
    doubtful              it was not ready, by word that is `DOUBT_AFTER_MS` old
    busy                  this request tried it, and it cools: it refuses, but it answers
    not_ready             so says the collector; this request has not tried it
    tried                 it has just failed this request
    quota                 a provider that refuses until its quota is renewed: to ask it is known to fail
    tried_not_ready       both
    left                  never waived

So a retry goes to whoever it has not tried before it goes back to one that failed, also where the collector speaks
against the former; only one that refuses for load, and so is alive, comes before those that are not ready.

Readiness is told when it changes and repeated in each snapshot, at least every 2 s. Once the snapshot is older than
five of these (scorer or Kafka is away), "not ready" is no more than a doubt: every `RETEST_EVERY`th request asks such
an instance, one at a time, and others do when those that are ready fail. One that has answered since, by the router's
own tail, is ready again; after 10 s without an answer the doubt is back. The auditor has all of that: the age of the
snapshot, the tail, requests awaiting, the ordinal.

Of those who remain, some may be in reserve (`tiers.py`).
"""

from collections.abc import Sequence

from evenload.routing.policy import InstanceView, Request
from evenload.routing.tiers import serving, why_not

LEFT = "left"
DOUBTFUL = "doubtful"
RETEST = "retest"  # of the others, where a request re-tests one that is doubtful
WAIVED_FIRST = (
    "cooling_long_prompt",
    "draining",
    DOUBTFUL,
    "busy",
    "not_ready",
    "tried",
    "quota",
    "tried_not_ready",
)
DOUBT_AFTER_MS = 10_000  # not less than the window of `ok_sum`: what that counts is then newer than the snapshot
RETEST_EVERY = 50


def exclusion(view: InstanceView, request: Request, now_ms: int) -> str:
    """Return why an instance may not serve the request, or an empty string."""
    state = view.state
    if state.left_ms is not None:
        return LEFT
    cools = now_ms < state.cooling_until_ms
    if cools and state.cooling_cause == "quota":
        return "quota"
    ready = state.ready or answers_again(view, now_ms)
    if view.instance in request.tried:
        return _tried(ready, cools)
    if not ready:
        return DOUBTFUL if is_stale(view, now_ms) else "not_ready"
    if state.draining:
        return "draining"
    return "cooling_long_prompt" if cools and request.prompt_tokens >= view.config.long_prompt_tokens else ""


def _tried(ready: bool, cools: bool) -> str:
    if not ready:
        return "tried_not_ready"
    return "busy" if cools else "tried"


def is_stale(view: InstanceView, now_ms: int) -> bool:
    """Tell whether the collector's word on the instance is too old to bind."""
    return view.snapshot_ms is not None and now_ms - view.snapshot_ms >= DOUBT_AFTER_MS


def answers_again(view: InstanceView, now_ms: int) -> bool:
    """Tell whether an instance has answered this router after a word that is too old to bind."""
    return view.state.ok_sum > 0 and is_stale(view, now_ms)


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
            reasons[index] = why_not(views, chosen, index)
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
    if DOUBTFUL in reasons and not request.tried:
        asked = _retested(views, reasons, request)
        if asked is not None:
            return [asked], ["" if index == asked else reason or RETEST for index, reason in enumerate(reasons)]
    for waived in ("", *WAIVED_FIRST):
        reasons = ["" if reason == waived else reason for reason in reasons]
        indices = [index for index, reason in enumerate(reasons) if not reason]
        if indices:
            return indices, reasons
    return [], reasons


def _retested(views: Sequence[InstanceView], reasons: Sequence[str], request: Request) -> int | None:
    """Return whom the request re-tests, if it does: they take turns, one request at a time."""
    turn, left = divmod(request.ordinal + 1, RETEST_EVERY)
    if left:
        return None
    doubtful = [i for i, reason in enumerate(reasons) if reason == DOUBTFUL and not views[i].state.draining]
    if not doubtful:
        return None
    index = doubtful[turn % len(doubtful)]
    return None if views[index].awaiting else index
