"""`GET /fleet`: what this router believes of each instance, and why, in words."""

from typing import Any

from evenload.router.dispatcher import Dispatcher
from evenload.router.pool import Pool
from evenload.routing import Request, eligible
from evenload.routing.exclusion import answers_again, exclusion, is_stale
from evenload.routing.policy import InstanceView
from evenload.routing.tiers import PASSED_OVER, RESERVE
from evenload.scoring.cooling import cooling_left_ms
from evenload.scoring.damping import raw_score, terms, ttft_estimate_ms

NOTEWORTHY = 0.01  # share of a term below which it is not worth a word


def fleet(dispatcher: Dispatcher, stale_view_ms: float) -> dict[str, Any]:
    """Return the router's view as plain data.

    Args:
        dispatcher: whose view it is.
        stale_view_ms: age of a partition's newest snapshot from which the view counts as stale.
    """
    mono_ms = dispatcher.clock()
    now_ms = dispatcher.log_clock.now_ms(mono_ms)
    stale_ms = dispatcher.view.stale_ms(mono_ms)
    return {
        "router": dispatcher.router,
        "now_ms": now_ms,
        "snapshot_age_ms": None if stale_ms is None else round(stale_ms),
        "view": "local only" if stale_ms is None else "stale" if stale_ms > stale_view_ms else "fresh",
        "pools": [_pool(dispatcher, pool, now_ms) for pool in dispatcher.pools.values()],
    }


def _pool(dispatcher: Dispatcher, pool: Pool, now_ms: int) -> dict[str, Any]:
    return {
        "name": pool.name,
        "models": list(pool.models),
        "policy": pool.policy.name,
        "config_digest": pool.config_digest,
        "requests": pool.ordinal,
        "bytes_per_token": round(pool.bytes_per_token, 3),
        "spill_over_ms": pool.spill_over_ms,
        "instances": _instances(dispatcher, pool, now_ms),
    }


def _instances(dispatcher: Dispatcher, pool: Pool, now_ms: int) -> list[dict[str, Any]]:
    views = dispatcher.views(pool, now_ms)
    reasons = eligible(views, Request(), now_ms, pool.spill_over_ms)[1]
    tier = [reason if reason in (RESERVE, PASSED_OVER) else "" for reason in reasons]
    return [_instance(dispatcher, view, now_ms, reason) for view, reason in zip(views, tier, strict=True)]


def _instance(dispatcher: Dispatcher, view: InstanceView, now_ms: int, tier: str) -> dict[str, Any]:
    state, config = view.state, view.config
    ttft, error, queue = terms(state, state.tick, config)
    estimate_ms = ttft_estimate_ms(state, now_ms, config)
    known = gauges_known(view, now_ms)
    return {
        "instance": view.instance,
        "score": round(view.score, 2),
        "raw_score": round(raw_score(state, state.tick, config), 2),
        "terms": {"ttft": round(ttft, 4), "error": round(error, 4), "queue": round(queue, 4)},
        "ttft_ms": None if estimate_ms is None else round(estimate_ms, 1),
        "ewma_ttft_ms": None if state.ewma_ttft_ms is None else round(state.ewma_ttft_ms, 1),
        "in_flight": view.in_flight,
        "awaiting": view.awaiting,
        "others_in_flight": view.others_in_flight,
        "running": state.running if known else None,
        "waiting": state.waiting if known else None,
        "kv_usage": state.kv_usage if known else None,
        "successes": state.successes,
        "errors": state.errors,
        "saturations": state.saturations,
        "restarts": state.restarts,
        "generation": state.generation,
        "ready": state.ready,
        "draining": state.draining,
        "cooling_ms": cooling_left_ms(state, now_ms),
        "snapshot_age_ms": None if view.snapshot_ms is None else max(0, now_ms - view.snapshot_ms),
        "own_events_on_top": dispatcher.view.tail_events(view.instance),
        "weight": view.weight,
        "priority": view.priority,
        "excluded": exclusion(view, Request(), now_ms) or tier,
        "why": _why(view, (ttft, error, queue), estimate_ms, now_ms),
    }


def gauges_known(view: InstanceView, now_ms: int) -> bool:
    """Tell whether gauges came and have not expired."""
    gauges_ms = view.state.gauges_ms
    return gauges_ms is not None and now_ms - gauges_ms < view.config.gauges_expire_ms


def _silence(view: InstanceView, now_ms: int) -> list[str]:
    """Say what the engine does not say; it counts neither for nor against the instance."""
    state = view.state
    if not gauges_known(view, now_ms):
        return ["its gauges stopped coming, so queue and KV cache are unknown"]
    unsaid = {"queue": state.waiting, "KV cache": state.kv_usage}
    lacking = " and ".join(name for name, value in unsaid.items() if value is None)
    return [f"its page does not say its {lacking}: unknown, not 0"] if lacking else []


def _unready(view: InstanceView, now_ms: int) -> str:
    """Say how far the collector's "not ready" holds."""
    cause = view.state.cause or "no reason given"
    if not is_stale(view, now_ms):
        return f"It is not ready ({cause}), so its score is 0."
    silent_s = (now_ms - (view.snapshot_ms or 0)) // 1000
    told = f"It was not ready ({cause}), and nothing has been told of it for {silent_s} s"
    if answers_again(view, now_ms):
        return f"{told}, but it answers: it is used."
    return f"{told}: it is re-tested, and asked when others fail."


def _why(view: InstanceView, parts: tuple[float, float, float], estimate_ms: float | None, now_ms: int) -> str:
    """Say in one sentence what the score is made of."""
    state, config = view.state, view.config
    if state.left_ms is not None:
        return "It left the fleet."
    if not state.ready:
        return _unready(view, now_ms)
    ttft, error, queue = parts
    found: list[str] = []
    if ttft >= NOTEWORTHY:
        found.append(
            f"latency costs {100 * config.ttft_weight * ttft:.1f} points (TTFT about {estimate_ms or 0:.0f} ms)"
        )
    if error >= NOTEWORTHY:
        cooling = cooling_left_ms(state, now_ms)
        reason = (
            f"cooling for {cooling / 1000:.1f} s after {state.cooling_cause}"
            if cooling
            else (f"{state.err_sum} of {state.err_sum + state.ok_sum} attempts failed in 10 s, last: {state.cause}")
        )
        found.append(f"errors cost {100 * config.error_weight * error:.1f} points ({reason})")
    if queue >= NOTEWORTHY:
        found.append(f"the queue costs {100 * config.queue_weight * queue:.1f} points")
    if raw_score(state, state.tick, config) > view.score:
        found.append(f"damping holds it at {view.score:.1f} while it warms up or recovers")
    if state.gauges_ms is not None:
        found.extend(_silence(view, now_ms))
    if state.draining:
        found.append("it drains")
    return (", ".join(found)[:1].upper() + ", ".join(found)[1:] + ".") if found else "Nothing speaks against it."
