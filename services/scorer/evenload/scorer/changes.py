"""Which changes of an instance are worth a record at once; all others wait for the heartbeat.

Worth it are: any change of generation, membership, readiness, draining, restarts, cooling, config; one point of score
(or reaching 0 or 100); 5 % of a TTFT estimate; 2 points of KV usage; and, of the counts (running, waiting, in flight,
awaiting and their tokens), a tenth and at least one. Routers fold their own events themselves, so this is about what
others saw.
"""

from evenload.schemas import InstanceSnapshot, InstanceState

SCORE_POINTS = 1.0
TTFT_SHARE = 0.05
KV_SHARE = 0.02
COUNT_SHARE = 0.1

_EXACT = ("generation", "ready", "draining", "left_ms", "restarts", "cooling_until_ms", "cooling_cause", "cause")


def meaningful(old: InstanceSnapshot, new: InstanceSnapshot) -> bool:
    """Tell whether `new` differs from the published `old` by more than the thresholds."""
    before, after = old.state, new.state
    return (
        old.digest != new.digest
        or any(getattr(before, name) != getattr(after, name) for name in _EXACT)
        or _score_moved(old.score, new.score)
        or _moved(before.ewma_ttft_ms, after.ewma_ttft_ms, TTFT_SHARE, 1.0)
        or _moved(before.live_ttft_ms, after.live_ttft_ms, TTFT_SHARE, 1.0)
        or _gauges_moved(before, after)
        or _loads_moved(old, new)
    )


def in_motion(snapshot: InstanceSnapshot) -> bool:
    """Tell whether the score changes by the passing of time alone: it rises, or the instance cools."""
    return snapshot.score < snapshot.raw or snapshot.state.cooling_until_ms > snapshot.state.tick * 100


def _score_moved(old: float, new: float) -> bool:
    return abs(new - old) >= SCORE_POINTS or (old != new and (new in (0.0, 100.0) or old in (0.0, 100.0)))


def _gauges_moved(old: InstanceState, new: InstanceState) -> bool:
    return (
        (old.gauges_ms is None) != (new.gauges_ms is None)
        or _moved(old.waiting, new.waiting, COUNT_SHARE, 1.0)
        or _moved(old.running, new.running, COUNT_SHARE, 1.0)
        or _moved(old.kv_usage, new.kv_usage, 0.0, KV_SHARE)
    )


def _loads_moved(old: InstanceSnapshot, new: InstanceSnapshot) -> bool:
    return (
        old.replicas != new.replicas
        or _moved(old.in_flight, new.in_flight, COUNT_SHARE, 1.0)
        or _moved(old.awaiting, new.awaiting, COUNT_SHARE, 1.0)
        or _moved(old.in_flight_tokens, new.in_flight_tokens, COUNT_SHARE, 1.0)
        or _moved(old.awaiting_tokens, new.awaiting_tokens, COUNT_SHARE, 1.0)
    )


def _moved(old: float | None, new: float | None, share: float, least: float) -> bool:
    """Tell whether a figure moved by `share` of itself and at least `least`, or became known or unknown."""
    if old is None or new is None:
        return (old is None) != (new is None)
    step = abs(new - old)
    return step >= least and step >= share * abs(old)
