"""A Kafka that is there when a test says so, and remembers what it was given."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random

from evenload.bus.link import Receipt, Record
from evenload.schemas import Batch, decode_batch


class ScriptedLink:
    """Stands for a `ProducerLink`.

    Attributes:
        up: whether it takes records; callers wait until it does.
        log: batches by partition.
        rng: with it only a part of what is offered is taken, sometimes, and some time passes before the answer.
    """

    connected = True
    failures = 0

    def __init__(self, rng: Random | None = None) -> None:
        self.up = asyncio.Event()
        self.log: defaultdict[int, list[Batch]] = defaultdict(list)
        self.rng = rng

    async def produce(self, _topic: str, partition: int, records: Callable[[], Sequence[Record]]) -> Receipt:
        await self.up.wait()
        wanted = records()
        count = len(wanted) if self.rng is None else self.rng.randint(1, len(wanted))
        offset = len(self.log[partition])
        self.log[partition] += [decode_batch(value) for _, value in wanted[:count]]
        await asyncio.sleep(0 if self.rng is None else self.rng.random() * 0.02)
        return Receipt(count, offset, 0)

    async def close(self) -> None:
        pass


def sequences(log: dict[int, list[Batch]]) -> dict[tuple[int, int], list[Batch]]:
    """Batches by (incarnation, partition) as a reader sees them that drops repeated ones; fails at a gap."""
    found: dict[tuple[int, int], list[Batch]] = defaultdict(list)
    for partition, batches in log.items():
        for batch in batches:
            known = found[batch.incarnation, partition]
            assert batch.seq <= len(known), f"a gap before {batch.seq} in partition {partition}"
            if batch.seq == len(known):
                known.append(batch)
    return found
