"""Short hand for hand-computed tests: one instance, events at seconds after `T0_MS`."""

from collections.abc import Callable
from typing import Any

from evenload.schemas import Batch, Event, InstanceState, Outcome
from evenload.scoring import DEFAULT, ScoringConfig, apply, at, fold, fresh, score

T0_MS = 1_000_000  # on the 100 ms grid and on a whole second
NEVER_DAMPED = ScoringConfig(warmup_score=100.0, damping_per_s=1000.0)

Step = tuple[float, Event]


def after(*steps: Step, config: ScoringConfig = DEFAULT, state: InstanceState | None = None) -> InstanceState:
    """Return a state (new at T0 unless given) after events at the given seconds."""
    state = fresh("a", T0_MS, config) if state is None else state
    for seconds, event in steps:
        state = apply(state, event, ms(seconds), config)
    return state


def ms(seconds: float) -> int:
    """Return log time so many seconds after T0."""
    return T0_MS + round(seconds * 1000)


def score_at(state: InstanceState, seconds: float, config: ScoringConfig = DEFAULT) -> float:
    """Return the published score so many seconds after T0."""
    return score(at(state, ms(seconds), config), config)


def warm(config: ScoringConfig = DEFAULT) -> InstanceState:
    """Return an instance that has been up for a minute without events: score 100 at T0."""
    return at(fresh("a", T0_MS - 60_000, config), T0_MS, config)


def outcome(kind: str, **fields: Any) -> Outcome:
    """Return an outcome of instance `a`."""
    return Outcome(instance="a", kind=kind, **fields)  # type: ignore[arg-type]  # one of the wire's literals


def batch(*events: Event, incarnation: int = 1, seq: int = 0, age_ms: float = 0.0) -> Batch:
    """Return a telemetry record."""
    return Batch(v=1, producer="p", incarnation=incarnation, seq=seq, events=list(events), age_ms=age_ms)


def always(config: ScoringConfig = DEFAULT) -> Callable[[str], ScoringConfig]:
    """Return a lookup that gives every instance the same config."""
    return lambda _instance: config


Record = tuple[int, int, Batch]  # offset, log_ms, batch


def fold_all(
    records: list[Record], config: ScoringConfig = DEFAULT, states: dict[str, InstanceState] | None = None
) -> dict[str, InstanceState]:
    """Return the states after the records, starting from copies of none or of the given ones."""
    states = dict(states or {})
    for offset, log_ms, record in records:
        states.update(fold(states, record, offset, log_ms, always(config)))
    return states
