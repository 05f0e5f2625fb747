"""The fold: how events change states. Everybody who computes a score runs this code.

House rules: no clock, no randomness, no I/O; only + - * / and comparisons on floats, so that every machine gets the
same bits; the caller's states are never changed. Time is the log's: max(latest so far, the record's timestamp).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from evenload.schemas.state import InstanceState, Load
from evenload.schemas.telemetry import (
    Batch,
    EngineGauges,
    Event,
    FirstToken,
    Membership,
    Outcome,
    Overdue,
    RouterLoad,
)
from evenload.scoring.clock import tick_of
from evenload.scoring.config import DEFAULT, ScoringConfig
from evenload.scoring.cooling import cool
from evenload.scoring.damping import advance, fall
from evenload.scoring.ewma import faded, in_time, per_sample
from evenload.scoring.prediction import forget, learn, predicted_ms, work_of
from evenload.scoring.slowness import ratio_of, witness
from evenload.scoring.window import record

PRODUCERS_MAX = 256  # producers remembered per instance; the least recently active is forgotten first


class Observed(Protocol):
    """An event and the log time at which it was observed."""

    event: Event
    at_ms: int


def fresh(instance: str, log_ms: int, config: ScoringConfig = DEFAULT, generation: int = 0) -> InstanceState:
    """Return the state of an instance that nobody has heard of: warm-up score, everything unknown."""
    return InstanceState(
        instance=instance,
        generation=generation,
        log_ms=log_ms,
        slow_at_ms=log_ms,
        tick=tick_of(log_ms),
        window_s=log_ms // 1000,
        damped=config.warmup_score,
    )


def apply(state: InstanceState, event: Event, log_ms: int, config: ScoringConfig = DEFAULT) -> InstanceState:
    """Return the state after `event` at log time `log_ms`; `state` is left as it was.

    Repeated events count again: recognising a re-sent batch is `fold`'s business, which knows its sequence.
    """
    new = _private(state, log_ms, config)
    _change(new, event, False, config)
    return new


def apply_all(state: InstanceState, events: Iterable[Observed], config: ScoringConfig = DEFAULT) -> InstanceState:
    """Return what `apply` gives for one event after the other, with one copy of the state."""
    new = own_private(state)
    for observed in events:
        _move(new, observed.at_ms, config)
        _change(new, observed.event, False, config)
    return new


def fold(
    states: Mapping[str, InstanceState],
    batch: Batch,
    offset: int,
    log_ms: int,
    config_of: Callable[[str], ScoringConfig],
) -> dict[str, InstanceState]:
    """Return the states that one telemetry record changes, as new values.

    Args:
        states: what is known so far; an instance that is missing starts `fresh`.
        batch: the record.
        offset: of the record in its partition; states whose `as_of` reaches it already include it.
        log_ms: timestamp of the record (LogAppendTime).
        config_of: scoring config by instance id.

    A state that has seen this (incarnation, seq), or a later one, of the producer is not in the result.
    """
    changed: dict[str, InstanceState] = {}
    skipped: set[str] = set()
    for event in batch.events:
        name = event.instance
        if name in skipped:
            continue
        config = config_of(name)
        # Who belongs to the fleet is a fact, however late it is told; of the rest, what is too old is only counted.
        aged = batch.age_ms - event.at > config.aged_ms and not isinstance(event, Membership)
        new = changed.get(name)
        if new is None:
            old = states.get(name)
            if old is not None and buried(old, log_ms, config):
                old = None
            if old is not None and _includes(old, batch, offset):
                skipped.add(name)
                continue
            new = changed[name] = _private(old or fresh(name, log_ms, config), log_ms, config)
            new.as_of = offset
            _remember(new, batch)
        _change(new, event, aged, config, batch.incarnation)
    return changed


def buried(state: InstanceState, log_ms: int, config: ScoringConfig) -> bool:
    """Tell whether an instance left so long ago that its state counts as forgotten (and may be deleted)."""
    return state.left_ms is not None and log_ms - state.left_ms >= config.grave_ms


def own_private(state: InstanceState) -> InstanceState:
    """Return a copy that may be changed without the original noticing (nested dicts are replaced, never changed)."""
    new: InstanceState = state.__copy__()  # type: ignore[attr-defined]  # msgspec's C-level shallow copy
    new.ok = state.ok.copy()
    new.err = state.err.copy()
    return new


def _private(state: InstanceState, log_ms: int, config: ScoringConfig) -> InstanceState:
    new = own_private(state)
    _move(new, log_ms, config)
    return new


def _move(new: InstanceState, log_ms: int, config: ScoringConfig) -> None:
    if log_ms > new.log_ms:
        new.log_ms = log_ms
        advance(new, log_ms, config)


def _includes(state: InstanceState, batch: Batch, offset: int) -> bool:
    return state.as_of >= offset or state.watermarks.get(batch.incarnation, -1) >= batch.seq


def _remember(state: InstanceState, batch: Batch) -> None:
    marks = state.watermarks.copy()
    marks.pop(batch.incarnation, None)
    marks[batch.incarnation] = batch.seq
    if len(marks) > PRODUCERS_MAX:
        del marks[next(iter(marks))]
    state.watermarks = marks


def _change(s: InstanceState, event: Event, aged: bool, config: ScoringConfig, incarnation: int = 0) -> None:
    if event.gen != s.generation or s.left_ms is not None:
        if event.gen <= s.generation:
            s.older_generation += 1
            return
        if not aged:
            _start_generation(s, event.gen, config)
    if aged:
        s.aged += 1
        return
    _HANDLERS[type(event)](s, event, config, incarnation)
    fall(s, config)


def _start_generation(s: InstanceState, generation: int, config: ScoringConfig) -> None:
    """Begin anew as a never-seen instance, keeping only what identifies the log and its producers."""
    blank = fresh(s.instance, s.log_ms, config, generation)
    blank.tick, blank.window_s, blank.as_of, blank.watermarks = s.tick, s.window_s, s.as_of, s.watermarks
    blank.older_generation, blank.aged = s.older_generation, s.aged
    for name in InstanceState.__struct_fields__:
        setattr(s, name, getattr(blank, name))


def _restart(s: InstanceState, config: ScoringConfig) -> None:
    """Forget what was learnt of the process that is gone; its replicas' loads and all counters stay."""
    s.restarts += 1
    s.draining = False
    s.damped = min(s.damped, config.warmup_score)
    s.ewma_ttft_ms = s.live_ttft_ms = None
    forget(s)
    s.slowness, s.slow_at_ms = 1.0, s.log_ms
    s.ok, s.err, s.ok_sum, s.err_sum = [0] * len(s.ok), [0] * len(s.err), 0, 0
    s.cooling_until_ms = s.cooling_hits = 0
    s.cooling_cause = ""


def _first_token(s: InstanceState, event: FirstToken, config: ScoringConfig, _: int) -> None:
    s.first_tokens += 1
    s.ewma_ttft_ms = per_sample(s.ewma_ttft_ms, event.ttft_ms, config.ewma_alpha)
    s.live_ttft_ms = in_time(s.live_ttft_ms, event.ttft_ms, s.log_ms - s.live_at_ms, config)
    s.live_at_ms = s.log_ms
    work = float(event.work) if event.work else work_of(float(event.prompt_tokens))
    expected_ms = event.predicted_ms if event.predicted_ms is not None else predicted_ms(s, work)
    if expected_ms is not None:
        witness(s, ratio_of(event.ttft_ms, expected_ms, config), config)
    learn(s, work, event.ttft_ms, config)


def _overdue(s: InstanceState, event: Overdue, config: ScoringConfig, _: int) -> None:
    s.overdue += 1
    idle_ms = s.log_ms - s.live_at_ms
    known = faded(s.live_ttft_ms, idle_ms, config)
    if known is None or event.age_ms > known:
        known = in_time(s.live_ttft_ms, event.age_ms, idle_ms, config)
    # Evidence that raises nothing still moves the time on: were the time to depend on the value, a slower sample before
    # could give a better score later, through the weight of the next one.
    s.live_ttft_ms, s.live_at_ms = known, s.log_ms
    expected_ms = event.predicted_ms
    if expected_ms is None:
        expected_ms = predicted_ms(s, work_of(float(event.prompt_tokens)))
    if expected_ms is not None:
        witness(s, ratio_of(event.age_ms, expected_ms, config), config, censored=True)


def _outcome(s: InstanceState, event: Outcome, config: ScoringConfig, _: int) -> None:
    kind = event.kind
    if kind == "ok":
        s.successes += 1
        record(s, True)
    elif kind in ("rejected", "client_gone"):
        s.neutral += 1
    elif kind in ("saturated", "quota"):
        s.saturations += 1
        cool(s, kind if kind == "quota" else event.cause or kind, event.retry_after_ms, config)
    else:
        s.errors += 1
        if s.ready:  # else the cause is why it is not, which decides whether `ready` will mean a new process
            s.cause = event.cause or kind
        record(s, False)
        if s.err_sum > 1:  # one odd failure convicts nobody
            witness(s, config.fail_ratio, config, censored=True)  # it would have taken longer still


def _router_load(s: InstanceState, event: RouterLoad, config: ScoringConfig, incarnation: int) -> None:
    loads = {key: load for key, load in s.loads.items() if s.log_ms - load.at_ms < config.load_expire_ms}
    loads.pop(incarnation, None)
    if event.in_flight or event.awaiting:
        loads[incarnation] = Load(
            event.in_flight, event.awaiting, event.in_flight_tokens, event.awaiting_tokens, s.log_ms
        )
    if len(loads) > PRODUCERS_MAX:
        del loads[next(iter(loads))]
    s.loads = loads


def _engine_gauges(s: InstanceState, event: EngineGauges, config: ScoringConfig, _: int) -> None:
    if event.started_s is not None:
        if s.started_s is not None and event.started_s != s.started_s:
            _restart(s, config)
            s.cause = ""  # if it was refused: the new process has been noticed, `ready` need not notice it again
        s.started_s = event.started_s
    s.running, s.waiting, s.kv_usage = event.running, event.waiting, event.kv_usage
    s.prefix_hits, s.prefix_queries, s.preemptions = event.prefix_hits, event.prefix_queries, event.preemptions
    s.gauges_ms = s.log_ms


def _membership(s: InstanceState, event: Membership, config: ScoringConfig, _: int) -> None:
    if event.change == "ready":
        if not s.ready and s.cause == "refused":
            _restart(s, config)
            s.damped = config.warmup_score  # the 0 was that of nobody being there, not that of the new process
            s.started_s = None  # whatever the new process says is its own, not one more restart
        s.ready, s.cause = True, ""
    elif event.change == "not_ready":
        # Refused once is refused until ready: a later, softer reason must not hide that the process was gone.
        s.cause = s.cause if not s.ready and s.cause == "refused" else event.cause
        s.ready = False
    elif event.change == "draining":
        s.draining = True
    elif event.change == "left":
        s.left_ms = s.log_ms
    else:
        s.draining = False


_HANDLERS: dict[type, Callable[[InstanceState, Any, ScoringConfig, int], None]] = {
    FirstToken: _first_token,
    Overdue: _overdue,
    Outcome: _outcome,
    RouterLoad: _router_load,
    EngineGauges: _engine_gauges,
    Membership: _membership,
}
