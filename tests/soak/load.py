"""Steady telemetry of three producers that now and then send batches again, as after a lost acknowledgement."""

import asyncio
import contextlib
import random
from collections import Counter, deque

from aiokafka import AIOKafkaProducer

from evenload.schemas import Batch, FirstToken, Outcome, encode
from tests.scorer.traffic import batches

BATCHES_PER_S = 40.0
REMEMBERED = 60  # batches that may be sent again


class Load:
    """Writes until it is closed.

    Attributes:
        sent, again: records written, and those of them that were there before.
        first_tokens, outcomes: events by instance, each counted once however often it was sent.
    """

    def __init__(self, bootstrap: str, topic: str, seed: int, instances: list[str], partitions: int) -> None:
        self.sent = self.again = 0
        self.first_tokens: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=2)
        self._topic = topic
        self._rng = random.Random(seed)
        self._traffic = batches(seed, instances, partitions)
        self._recent: deque[tuple[int, Batch]] = deque(maxlen=REMEMBERED)
        self._running = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to write."""
        await self._producer.start()
        self._running.set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def pause(self) -> None:
        """Write nothing until `resume`; what was written is acknowledged."""
        self._running.clear()
        await self._producer.flush()

    def resume(self) -> None:
        """Go on."""
        self._running.set()

    async def close(self) -> None:
        """Stop, and raise what went wrong."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._producer.stop()

    async def again_from(self, count: int) -> None:
        """Send the last `count` batches once more, in order."""
        for partition, batch in list(self._recent)[-count:]:
            self.again += 1
            await self._send(partition, batch)

    async def _run(self) -> None:
        while True:
            await self._running.wait()
            partition, batch = next(self._traffic)
            self._count(batch)
            await self._send(partition, batch)
            self._recent.append((partition, batch))
            if self._rng.random() < 0.03:
                await self.again_from(self._rng.randrange(1, 5))
            await asyncio.sleep(self._rng.expovariate(BATCHES_PER_S))

    async def _send(self, partition: int, batch: Batch) -> None:
        await self._producer.send_and_wait(self._topic, encode(batch), partition=partition)
        self.sent += 1

    def _count(self, batch: Batch) -> None:
        for event in batch.events:
            self.first_tokens[event.instance] += isinstance(event, FirstToken)
            self.outcomes[event.instance] += isinstance(event, Outcome)
