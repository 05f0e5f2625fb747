"""Who reads along during the soak and must never see anything go backwards: a router's view, a reader of states."""

import asyncio
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, TopicPartition

from evenload.bus.snapshots import SnapshotReader
from evenload.routing import FleetView
from evenload.routing.leases import Counts
from evenload.schemas import InstanceState, SnapshotBatch, decode_state
from evenload.scoring import ScoringConfig
from tests.kafka_fixtures import TestTopics

State = tuple[int, str, bytes]  # partition, instance, encoded state


class ViewReader:
    """A router's view, fed by the production reader.

    Attributes:
        seen: snapshots records since the last `take_seen`, with their partition.
        backwards: what went backwards, in words.
    """

    def __init__(
        self, topics: TestTopics, partitions: dict[str, int], config_of: Callable[[str], ScoringConfig]
    ) -> None:
        configs = {name: config_of(name) for name in partitions}
        self.view = FleetView(configs, partitions, incarnation=1, log_ms=0)
        self.seen: list[SnapshotBatch] = []
        self.backwards: list[str] = []
        self.reader = SnapshotReader(topics.bootstrap, topics.prefix, max(partitions.values()) + 1, self._take)
        self._at: dict[str, tuple[int, int]] = {}

    def take_seen(self) -> list[SnapshotBatch]:
        """Return what was read since the last call."""
        seen, self.seen = self.seen, []
        return seen

    def _take(self, _: int, offset: int, batch: SnapshotBatch) -> None:
        self.seen.append(batch)
        self.view.take(offset, batch, 0.0)
        for one in batch.snapshots:
            name = one.state.instance
            seen = self.view.read(name, Counts(), 0)
            now = (seen.state.as_of, seen.snapshot_ms or 0)
            if now < self._at.get(name, now):
                self.backwards.append(f"view of {name}: {now} after {self._at[name]}")
            self._at[name] = now


class StateReader:
    """Tails the state topic and keeps, per instance, the state with the highest `as_of`.

    Attributes:
        kept: that state, and its bytes.
        seen: every record since the last `take_seen`.
        overtaken: records that were older than what was there.
        backwards: what went backwards, in words.
    """

    def __init__(self, topics: TestTopics, partitions: int) -> None:
        self.kept: dict[str, tuple[InstanceState, bytes]] = {}
        self.seen: list[State] = []
        self.overtaken = 0
        self.backwards: list[str] = []
        self._places = [TopicPartition(topics.names.state, partition) for partition in range(partitions)]
        self._consumer = AIOKafkaConsumer(bootstrap_servers=topics.bootstrap, group_id=None)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to read, from the beginning."""
        await self._consumer.start()
        self._consumer.assign(self._places)
        await self._consumer.seek_to_beginning(*self._places)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._consumer.stop()

    def take_seen(self) -> list[State]:
        """Return what was read since the last call."""
        seen, self.seen = self.seen, []
        return seen

    async def _run(self) -> None:
        while True:
            for place, records in (await self._consumer.getmany(timeout_ms=200)).items():
                for record in records:
                    self._take(place.partition, record.key.decode(), record.value)

    def _take(self, partition: int, name: str, data: bytes | None) -> None:
        if data is None:
            self.backwards.append(f"tombstone of {name}, which never left")
            return
        state = decode_state(data)
        self.seen.append((partition, name, data))
        old = self.kept.get(name)
        if old is not None and old[0].as_of > state.as_of:
            self.overtaken += 1
            return
        self.kept[name] = (state, data)
