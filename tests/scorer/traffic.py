"""Seeded telemetry for tests of the scorer, and the pure fold of what came of it."""

import random
from collections.abc import Callable, Iterable, Iterator

from evenload.bus.topics import partition_for
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
    WireError,
    decode_batch,
)
from evenload.scoring import ScoringConfig, fold


def event(rng: random.Random, instance: str) -> Event:
    """Draw one event of any kind."""
    roll = rng.random()
    if roll < 0.4:
        return FirstToken(instance=instance, ttft_ms=rng.uniform(20, 3000), prompt_tokens=rng.randrange(5000))
    if roll < 0.7:
        kind = rng.choice(["ok", "ok", "ok", "http_error", "saturated", "client_gone"])
        return Outcome(instance=instance, kind=kind, status=200, duration_ms=rng.uniform(100, 9000))  # type: ignore[arg-type]
    if roll < 0.8:
        return RouterLoad(instance=instance, in_flight=rng.randrange(20), awaiting=rng.randrange(5))
    if roll < 0.9:
        return EngineGauges(
            instance=instance, running=rng.randrange(30), waiting=rng.randrange(9), kv_usage=rng.random()
        )
    if roll < 0.97:
        return Overdue(instance=instance, age_ms=rng.uniform(250, 4000))
    return Membership(instance=instance, change=rng.choice(["joined", "ready", "not_ready"]), cause="refused")


def batches(
    seed: int, instances: list[str], partitions: int, events_per_batch: int = 10, producers: int = 3
) -> Iterator[tuple[int, Batch]]:
    """Yield telemetry partition and batch, without end."""
    rng = random.Random(seed)
    homes: dict[int, list[str]] = {}
    for instance in instances:
        homes.setdefault(partition_for(instance.encode(), partitions), []).append(instance)
    places = sorted(homes)
    incarnations = [rng.getrandbits(63) for _ in range(producers)]
    sequences: dict[tuple[int, int], int] = {}
    while True:
        partition, incarnation = rng.choice(places), rng.choice(incarnations)
        seq = sequences.get((partition, incarnation), 0)
        sequences[partition, incarnation] = seq + 1
        events = [event(rng, rng.choice(homes[partition])) for _ in range(events_per_batch)]
        yield partition, Batch(v=1, producer="test", incarnation=incarnation, seq=seq, events=events, age_ms=3.0)


def pure_fold(
    log: Iterable[tuple[int, int, bytes]],
    config_of: Callable[[str], ScoringConfig],
    states: dict[str, InstanceState] | None = None,
) -> dict[str, InstanceState]:
    """Fold (offset, timestamp, data) of one partition onto `states`; records that cannot be read are left out."""
    states = {} if states is None else states
    for offset, timestamp_ms, data in log:
        try:
            batch = decode_batch(data)
        except WireError:
            continue
        states.update(fold(states, batch, offset, timestamp_ms, config_of))
    return states
