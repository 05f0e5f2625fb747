"""Telemetry of routers and collectors: 35 % first tokens, 35 % outcomes, 10 % overdue, 15 % loads, 5 % gauges.

The same mix as in benchmarks/scoring, spread evenly over the instances; seeded. Batches without an emitter are for
backlogs.
"""

import itertools
import random
from collections.abc import Iterator, Sequence

from evenload.bus.topics import partition_for
from evenload.schemas import WIRE_VERSION, Batch, EngineGauges, Event, FirstToken, Outcome, Overdue, RouterLoad, encode


def instances(count: int) -> list[str]:
    """Ids of instances, of a length as they have in a cluster."""
    return [f"engine-{number:05d}" for number in range(count)]


def draw(rng: random.Random, instance: str) -> Event:
    """Draw one event."""
    kind = rng.random()
    if kind < 0.35:
        return FirstToken(instance=instance, ttft_ms=round(rng.lognormvariate(5.3, 0.4), 2), prompt_tokens=900)
    if kind < 0.70:
        good = rng.random() < 0.98
        return Outcome(
            instance=instance,
            kind="ok" if good else "timeout",
            status=200 if good else 0,
            ttft_ms=210.5 if good else None,
            duration_ms=3141.5,
            prompt_tokens=900,
            output_tokens=200,
            request_id=f"req-{rng.getrandbits(64):016x}",
        )
    if kind < 0.80:
        return Overdue(instance=instance, age_ms=250.0, prompt_tokens=900)
    if kind < 0.95:
        busy = rng.randrange(8)
        return RouterLoad(
            instance=instance, in_flight=busy, awaiting=busy // 3, in_flight_tokens=900 * busy, awaiting_tokens=busy
        )
    return EngineGauges(
        instance=instance, running=rng.randrange(30), waiting=rng.randrange(4), kv_usage=round(rng.random() * 0.8, 3)
    )


def backlog(
    names: Sequence[str], partitions: int, events: int, events_per_batch: int, *, producers: int = 8, seed: int = 1
) -> list[tuple[int, bytes]]:
    """Encoded batches with their partition, in turn of the partitions that have instances, `events` in all."""
    return [
        (partition, encode(batch))
        for partition, batch in batches(names, partitions, events, events_per_batch, producers=producers, seed=seed)
    ]


def batches(
    names: Sequence[str], partitions: int, events: int, events_per_batch: int, *, producers: int = 8, seed: int = 1
) -> Iterator[tuple[int, Batch]]:
    """Yield the batches of `backlog`, not encoded."""
    rng = random.Random(seed)
    homes: dict[int, list[str]] = {}
    for name in names:
        homes.setdefault(partition_for(name.encode(), partitions), []).append(name)
    places = sorted(homes)
    turns = {place: itertools.cycle(homes[place]) for place in places}
    incarnations = [rng.getrandbits(63) for _ in range(producers)]
    for number in range(-(-events // events_per_batch)):
        place = places[number % len(places)]
        turn, seq = number // len(places) % producers, number // len(places) // producers
        size = min(events_per_batch, events - number * events_per_batch)
        yield (
            place,
            Batch(
                v=WIRE_VERSION,
                producer=f"router-{turn}",
                incarnation=incarnations[turn],
                seq=seq,
                events=[draw(rng, next(turns[place])) for _ in range(size)],
                age_ms=25.0,
            ),
        )
