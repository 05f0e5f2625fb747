"""Random telemetry logs and configs for properties.

A log is a list of records (offset, log time, batch) as one partition could hold it: three producers with their own
sequences, three instances with generations, times that stand still, go on, jump by hours or go backwards, batches that
are old. Values cluster at edges, where the formula bends.
"""

import itertools
from typing import Any

from hypothesis import strategies as st

from evenload.schemas import (
    Batch,
    EngineGauges,
    Event,
    FirstToken,
    InstanceState,
    Membership,
    Outcome,
    Overdue,
    RouterLoad,
)
from evenload.scoring import ScoringConfig
from tests.scoring.steps import T0_MS, Record, fold_all

HOUR_MS = 3_600_000
INSTANCES = ("a", "b", "c")
INCARNATIONS = (1, 2, 2**63 - 1)
FAILURES = ("http_error", "stream_error", "upstream_cut", "connect_error", "timeout")

durations_ms = (
    st.sampled_from([0.0, 1.0, 250.0, 1999.9, 2000.0, 1e9])
    | st.floats(0, 5000, allow_nan=False)
    | st.floats(0, 1e9, allow_nan=False)
)
counts = st.sampled_from([0, 1, 15, 29, 30, 31, 10_000]) | st.integers(0, 2**53)
shares = st.sampled_from([0.0, 0.79, 0.8, 0.81, 0.9, 1.0]) | st.floats(0, 1)
causes = st.sampled_from(["", "refused", "loading", "kv_exhausted"])
gaps_ms = st.sampled_from(
    [0, 0, 1, 37, 99, 100, 101, 250, 1000, 2999, 3000, 9999, 10_000, 61_000, -1, -500, -HOUR_MS, HOUR_MS, 2 * HOUR_MS]
)
AGES_MS = (0.0, 0.0, 0.0, 0.0, 20.5, 9_999.0, 10_000.0, 10_001.0, 60_000.0)
GENERATIONS = (0,) * 8 + (1, 1, 2)  # most often 0, so that most logs have a history longer than a few events


def _optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


_FIELDS: dict[Any, dict[str, st.SearchStrategy[Any]]] = {
    FirstToken: {"ttft_ms": durations_ms},
    Overdue: {"age_ms": durations_ms},
    Outcome: {
        "kind": st.sampled_from(["ok", "saturated", "quota", "rejected", "client_gone", *FAILURES]),
        "cause": causes,
        "retry_after_ms": _optional(durations_ms),
    },
    RouterLoad: {"in_flight": counts, "awaiting": counts, "in_flight_tokens": counts, "awaiting_tokens": counts},
    EngineGauges: {
        "waiting": _optional(counts),
        "kv_usage": _optional(shares),
        "running": _optional(counts),
        "started_s": st.sampled_from([None, 5.0, 6.0]),
    },
    Membership: {
        "change": st.sampled_from(["joined", "draining", "left", "ready", "not_ready"]),
        "cause": causes,
    },
}


@st.composite
def any_events(draw: st.DrawFn) -> Event:
    """One event with fields anywhere within their bounds."""
    kind = draw(st.sampled_from(list(_FIELDS)))
    event: Event = kind(
        instance=draw(st.sampled_from(INSTANCES)),
        gen=draw(st.sampled_from(GENERATIONS)),
        at=draw(st.sampled_from([0, 7, 600])),
        **{name: draw(strategy) for name, strategy in _FIELDS[kind].items()},
    )
    return event


def _edge_events(instance: str, gen: int) -> list[Event]:
    def about(event: Any, /, **fields: Any) -> Any:
        return event(instance=instance, gen=gen, **fields)

    memberships = [("ready", ""), ("not_ready", ""), ("not_ready", "refused"), ("left", ""), ("joined", "")]
    return [
        *(about(Outcome, kind=kind) for kind in ["ok", "ok", "ok", "saturated", "saturated", "quota"]),
        *(about(Outcome, kind=kind, cause=cause) for kind in FAILURES for cause in ("", "refused")),
        *(about(Outcome, kind="saturated", retry_after_ms=retry_ms) for retry_ms in (0.0, 500.0, 90_000.0)),
        *(about(Outcome, kind=kind) for kind in ("rejected", "client_gone")),
        *(about(FirstToken, ttft_ms=ttft_ms) for ttft_ms in (0.0, 10.0, 700.0, 1000.0, 1990.0, 2010.0, 14_000.0)),
        *(about(Overdue, age_ms=age_ms) for age_ms in (250.0, 700.0, 1000.0, 4000.0)),
        *(about(EngineGauges, waiting=waiting, kv_usage=0.1, started_s=5.0) for waiting in (0, 15, 31)),
        *(about(EngineGauges, kv_usage=kv_usage) for kv_usage in (0.8, 0.95, 1.0)),
        about(EngineGauges, started_s=6.0),
        about(RouterLoad, in_flight=3, awaiting=1),
        about(RouterLoad),
        *(about(Membership, change=change, cause=cause) for change, cause in memberships),
    ]


# Drawing from a list costs one draw instead of one per field, so there is time for many more logs.
_EDGES = [event for gen in GENERATIONS for name in INSTANCES for event in _edge_events(name, gen)]
events = st.one_of(*[st.sampled_from(_EDGES)] * 4, any_events())
_headers = st.sampled_from(list(itertools.product(INCARNATIONS, (1, 2), (1, 3), AGES_MS)))


@st.composite
def logs(draw: st.DrawFn, records_max: int = 9, events_max: int = 4) -> list[Record]:
    """The records of one partition in the order of their offsets."""
    log_ms = T0_MS + draw(st.sampled_from([0, 50, 99, 950]))
    sequences = dict.fromkeys(INCARNATIONS, -1)
    records: list[Record] = []
    offset = -1
    for _ in range(draw(st.integers(1, records_max))):
        incarnation, sequence_step, offset_step, age_ms = draw(_headers)
        log_ms = max(0, log_ms + draw(gaps_ms))
        sequences[incarnation] += sequence_step
        offset += offset_step
        batch = Batch(
            v=1,
            producer="p",
            incarnation=incarnation,
            seq=sequences[incarnation],
            events=draw(st.lists(events, min_size=1, max_size=events_max)),
            age_ms=age_ms,
        )
        records.append((offset, log_ms, batch))
    return records


@st.composite
def configs(draw: st.DrawFn) -> ScoringConfig:
    """Any valid config; spans stay below a minute so that the naive reference, tick by tick, keeps up."""
    parts = [draw(st.integers(0, 100)) for _ in range(3)]
    whole = max(1, sum(parts) + draw(st.integers(0, 50)))
    cooling = sorted(draw(st.integers(100, 60_000)) for _ in range(3))
    positive = st.floats(1e-3, 1e6) | st.sampled_from([5e-324, 1e9])
    return ScoringConfig(
        ttft_weight=parts[0] / whole,
        error_weight=parts[1] / whole,
        queue_weight=parts[2] / whole,
        ttft_limit_ms=draw(positive),
        waiting_limit=draw(positive),
        kv_threshold=draw(st.floats(0, 1, exclude_max=True)),
        error_gain=draw(positive),
        ewma_alpha=draw(st.floats(0, 1, exclude_min=True)),
        evidence=draw(st.sampled_from(["published", "censored"])),
        rise_ms=draw(positive),
        decay_ms=draw(positive),
        sample_ms_min=draw(positive),
        evidence_expire_ms=draw(st.integers(100, 60_000)),
        damping_per_s=draw(st.floats(1, 1000)),
        warmup_score=draw(st.floats(0, 100)),
        cooling_ms=cooling[0],
        cooling_step_ms=draw(st.integers(0, 5000)),
        cooling_ms_max=cooling[1],
        cooling_ms_cap=cooling[2],
        aged_ms=draw(st.sampled_from([100, 10_000, 60_000])),
        gauges_expire_ms=draw(st.integers(100, 60_000)),
        load_expire_ms=draw(st.integers(100, 10_000)),
        grave_ms=draw(st.sampled_from([100, 600_000])),
    )


# Half of the examples with the constants that people run, in both ways of reading evidence.
any_config = st.sampled_from([ScoringConfig(), ScoringConfig(evidence="censored")]) | configs()


@st.composite
def histories(draw: st.DrawFn) -> tuple[InstanceState, ScoringConfig]:
    """A state that some log leads to, and its config."""
    config = draw(any_config)
    states = fold_all(draw(logs()), config)
    return states[draw(st.sampled_from(sorted(states)))], config


@st.composite
def moments(draw: st.DrawFn, state: InstanceState) -> list[int]:
    """Ascending moments from a state's own time on: within a tick, over windows, over hours."""
    steps = draw(st.lists(st.sampled_from([0, 1, 60, 100, 101, 900, 1000, 1500, 7000, 61_000, HOUR_MS]), max_size=5))
    now_ms = max(state.log_ms, state.tick * 100)
    result = []
    for step in steps:
        now_ms += step
        result.append(now_ms)
    return result


# ---- a log and a worse one


@st.composite
def worsened(draw: st.DrawFn) -> tuple[list[Record], list[Record]]:
    """A log, and the same with one event that says something worse of its instance."""
    records = draw(logs())
    places = [
        (index, position, event)
        for index, (_, _, batch) in enumerate(records)
        for position, event in enumerate(batch.events)
    ]
    index, position, event = draw(st.sampled_from(places))
    changed = list(records[index][2].events)
    changed[position : position + 1] = draw(_worse(event))
    return records, replaced(records, index, changed)


def replaced(records: list[Record], index: int, changed: list[Event]) -> list[Record]:
    """Return the records with other events in one of them."""
    offset, log_ms, batch = records[index]
    other = Batch(v=1, producer="p", incarnation=batch.incarnation, seq=batch.seq, events=changed, age_ms=batch.age_ms)
    return [*records[:index], (offset, log_ms, other), *records[index + 1 :]]


def extra_outcome(event: Event, kind: str, cause: str = "") -> Outcome:
    """Return an outcome that goes beside an event: of the same instance, generation and moment."""
    return Outcome(instance=event.instance, gen=event.gen, at=event.at, kind=kind, cause=cause)  # type: ignore[arg-type]


@st.composite
def _worse(draw: st.DrawFn, event: Event) -> list[Event]:
    failure = draw(st.sampled_from(FAILURES))
    worse: Event = event
    if isinstance(event, FirstToken):
        worse = _with(event, ttft_ms=draw(st.floats(event.ttft_ms, 1e9)))
    elif isinstance(event, Overdue):
        worse = _with(event, age_ms=draw(st.floats(event.age_ms, 1e9)))
    elif isinstance(event, EngineGauges):
        fields: dict[str, Any] = {}
        if event.waiting is not None:
            fields["waiting"] = draw(st.integers(event.waiting, 2**53))
        if event.kv_usage is not None:
            fields["kv_usage"] = draw(st.floats(event.kv_usage, 1))
        worse = _with(event, **fields)
    elif isinstance(event, Outcome) and event.kind == "ok":
        worse = _with(event, kind=failure)
    if worse is not event and draw(st.booleans()):
        return [worse]
    added = extra_outcome(event, failure, draw(causes))
    return [added, event] if draw(st.booleans()) else [event, added]


def _with(event: Event, **fields: Any) -> Any:
    return type(event)(**{name: getattr(event, name) for name in event.__struct_fields__} | fields)


@st.composite
def slower(draw: st.DrawFn) -> tuple[list[tuple[int, Event]], list[tuple[int, Event]]]:
    """A history of latencies that are close to each other, and the same with one of them larger."""
    log_ms = T0_MS
    history: list[tuple[int, Event]] = []
    for _ in range(draw(st.integers(2, 7))):
        log_ms += draw(st.sampled_from([0, 1, 20, 300, 5000, 59_000]))
        value_ms = draw(st.floats(0, 2500))
        if draw(st.booleans()):
            history.append((log_ms, FirstToken(instance="a", ttft_ms=value_ms)))
        else:
            history.append((log_ms, Overdue(instance="a", age_ms=value_ms)))
    index = draw(st.integers(0, len(history) - 1))
    log_ms, event = history[index]
    field = "ttft_ms" if isinstance(event, FirstToken) else "age_ms"
    larger = _with(event, **{field: getattr(event, field) + draw(st.floats(0, 500))})
    return history, [*history[:index], (log_ms, larger), *history[index + 1 :]]


# Spans of about the same size, so that each of them is the last to end in some examples.
lone_configs = st.builds(
    lambda weights, **fields: ScoringConfig(
        ttft_weight=weights[0], error_weight=weights[1], queue_weight=weights[2], **fields
    ),
    weights=st.sampled_from([(0.35, 0.40, 0.25), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]),
    evidence=st.sampled_from(["published", "censored"]),
    damping_per_s=st.sampled_from([9.0, 15.0, 70.0]),
    gauges_expire_ms=st.sampled_from([2000, 13_000]),
    evidence_expire_ms=st.sampled_from([1500, 13_000]),
    decay_ms=st.just(1e9),
)


@st.composite
def lone_states(draw: st.DrawFn) -> InstanceState:
    """A state with at most two things that will pass: failures, a cooling, gauges, an estimate in time."""
    tick = T0_MS // 100 + draw(st.integers(0, 19))
    now_ms = 100 * tick + draw(st.sampled_from([0, 1, 99]))
    fields: dict[str, Any] = {}
    for thing in draw(st.lists(st.sampled_from(["failures", "cooling", "gauges", "live"]), max_size=2)):
        ago_ms = draw(st.sampled_from([0, 0, 1, 950]))
        if thing == "failures":
            ring = [0] * 10
            ring[draw(st.integers(0, 9))] = 3
            fields |= {"err": ring, "err_sum": 3}
        elif thing == "cooling":
            fields["cooling_until_ms"] = now_ms + draw(st.sampled_from([0, 1, 2999, 13_000]))
        elif thing == "gauges":
            fields |= {"gauges_ms": now_ms - ago_ms, "waiting": draw(st.sampled_from([3, 30]))}
        else:
            fields |= {"live_ttft_ms": 1e6, "live_at_ms": now_ms - ago_ms}
    return InstanceState(
        instance="a",
        log_ms=now_ms,
        tick=tick,
        window_s=tick // 10,
        damped=draw(st.sampled_from([0.0, 30.0, 60.0])),
        **fields,
    )
