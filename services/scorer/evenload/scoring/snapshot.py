"""Reading a state at a moment, without changing it."""

from evenload.schemas.snapshots import InstanceSnapshot
from evenload.schemas.state import InstanceState, Load
from evenload.scoring.clock import TICK_MS
from evenload.scoring.config import DEFAULT, ScoringConfig, digest
from evenload.scoring.damping import advance, raw_score, terms
from evenload.scoring.fold import own_private
from evenload.scoring.health import combine


def at(state: InstanceState, now_ms: int, config: ScoringConfig = DEFAULT) -> InstanceState:
    """Return the state as it is at `now_ms` without further events; a moment before its log time is its log time."""
    new = own_private(state)
    advance(new, now_ms, config)
    return new


def score(state: InstanceState, config: ScoringConfig = DEFAULT) -> float:
    """Return the published score, 0..100, of a state advanced to the moment in question."""
    raw = raw_score(state, state.tick, config)
    return raw if raw < state.damped else state.damped


def snapshot(state: InstanceState, now_ms: int, config: ScoringConfig = DEFAULT) -> InstanceSnapshot:
    """Return what the scorer publishes of an instance at log time `now_ms`."""
    now = at(state, now_ms, config)
    ttft, error, queue = terms(now, now.tick, config)
    raw = combine(ttft, error, queue, config) if now.ready and now.left_ms is None else 0.0
    loads = _valid_loads(now, config)
    now.watermarks, now.loads = {}, {}
    return InstanceSnapshot(
        score=raw if raw < now.damped else now.damped,
        raw=raw,
        ttft=ttft,
        error=error,
        queue=queue,
        state=now,
        digest=digest(config),
        replicas=len(loads),
        in_flight=total([load.in_flight for load in loads]),
        awaiting=total([load.awaiting for load in loads]),
        in_flight_tokens=total([load.in_flight_tokens for load in loads]),
        awaiting_tokens=total([load.awaiting_tokens for load in loads]),
    )


def total(counts: list[int]) -> int:
    """Return the sum of counts: exact, being integers (the built-in is banned here for the sake of floats)."""
    result = 0
    for count in counts:
        result += count
    return result


def _valid_loads(state: InstanceState, config: ScoringConfig) -> list[Load]:
    now_ms = state.tick * TICK_MS  # on the grid like everything else, so one tick has one snapshot
    return [load for load in state.loads.values() if now_ms - load.at_ms < config.load_expire_ms]
