"""Reading the scorer's snapshots: every partition, without a consumer group, from a few seconds before the end.

Each instance is published at least every two seconds, so whoever starts at the last record minus five seconds knows the
whole fleet at once. The reader outlives Kafka: it waits for topics that are missing (assigning those would spin), and
begins a new session where it stopped after any failure.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from evenload.bus.access import Address, absent, client_options, is_refusal, knock_secured, words
from evenload.bus.client_logs import AWAY, limit_client_logs, limited_logger
from evenload.bus.forever import cancelled
from evenload.bus.link import RETRY_MS
from evenload.bus.topics import topic_names
from evenload.schemas import SnapshotBatch, WireError, decode_snapshots

log = limited_logger(__name__)

LOOK_BACK_MS = 5_000
_SILENCE_S = 10.0  # with no record for so long, ask whether the topic and our place in it are still there
_REQUEST_MS = 8_000
_START_S = 15.0
_STOP_S = 5.0
_BACKOFF_S = 0.2
_BACKOFF_S_MAX = 2.0
_POLL_MS = 1_000

OnBatch = Callable[[int, int, SnapshotBatch], None]


class _GoneError(Exception):
    """The topic is not there, or not as it should be, or we are not where its records are."""


class SnapshotReader:
    """Calls back with every record on the snapshots topic.

    Attributes:
        records: handed to the callback.
        undecodable: records that could not be read, skipped.
        callback_errors: records at which the callback failed.
        sessions: connections made.
        failures: sessions that ended, for whatever reason.
        resets: places that had to be found anew, because the log no longer had ours.
        positions: per partition the offset of the next record; None before the first session.
        caught_up: per partition, whether all that was there when the session began has been read.
    """

    def __init__(self, bootstrap: Address, prefix: str, partitions: int, on_batch: OnBatch) -> None:
        """Describe a reader; `start` lets it read.

        Args:
            bootstrap: Brokers, `host:port` with commas between.
            prefix: First part of the topics' names.
            partitions: Of the snapshots topic.
            on_batch: Called with (partition, offset, record), in order within a partition.
        """
        self.records = self.undecodable = self.callback_errors = 0
        self.sessions = self.failures = self.resets = 0
        self.positions: list[int | None] = [None] * partitions
        self.caught_up = [False] * partitions
        self._bootstrap = bootstrap
        self._topic = topic_names(prefix).snapshots
        self._places = [TopicPartition(self._topic, partition) for partition in range(partitions)]
        self._on_batch = on_batch
        self._connected = False
        self._last_record_s: float | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<SnapshotReader {self._topic} alive={self.alive} caught_up={self.caught_up} records={self.records}>"

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def alive(self) -> bool:
        """Whether it is at work, with or without Kafka."""
        return self._task is not None and not self._task.done()

    @property
    def connected(self) -> bool:
        """Whether a session is up."""
        return self._connected

    @property
    def last_record_age_ms(self) -> float | None:
        """Time since a record was handed on; None before the first."""
        return None if self._last_record_s is None else (time.monotonic() - self._last_record_s) * 1000

    def start(self) -> None:
        """Begin to read, on the running loop. Kafka need not be there."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="snapshots")

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        backoff_s = _BACKOFF_S
        while True:
            sessions, refused = self.sessions, False
            try:
                await self._session()
            except (Exception, asyncio.CancelledError) as error:  # whatever it is, the fleet must be seen again
                if cancelled():
                    raise
                self.failures += 1
                refused = is_refusal(error)
                away = None if refused or isinstance(error, _GoneError) else AWAY
                reason = words(error, self._bootstrap)
                log.warning("cannot read %s at %s, trying again: %s", self._topic, self._bootstrap, reason, extra=away)
            if self.sessions > sessions and not refused:
                backoff_s = _BACKOFF_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)

    async def _session(self) -> None:
        limit_client_logs()
        await knock_secured(self._bootstrap)
        consumer = AIOKafkaConsumer(
            **client_options(self._bootstrap),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",  # silently jumping to either end would hide that records are missing
            request_timeout_ms=_REQUEST_MS,
            retry_backoff_ms=RETRY_MS,
            max_partition_fetch_bytes=4 * 1024 * 1024,
        )
        try:
            async with asyncio.timeout(_START_S):
                await consumer.start()
                await self._check_topic(consumer)
                ends = await self._take_places(consumer)
            self.sessions += 1
            self._connected = True
            await self._read(consumer, ends)
        finally:
            self._connected = False
            with contextlib.suppress(Exception):  # it is given up in any case, and a new one must follow
                async with asyncio.timeout(_STOP_S):
                    await consumer.stop()

    async def _check_topic(self, consumer: Any) -> None:
        cluster = await consumer._client.fetch_all_metadata()  # asking for one topic by name could make it
        found = cluster.partitions_for_topic(self._topic)
        if not found:
            raise _GoneError(absent(self._topic, self._bootstrap))
        if len(found) != len(self._places):
            raise _GoneError(f"topic {self._topic} has {len(found)} partitions and should have {len(self._places)}")

    async def _take_places(self, consumer: Any) -> dict[TopicPartition, int]:
        """Assign all partitions and seek each to its place; returns their ends."""
        consumer.assign(self._places)
        first: dict[TopicPartition, int] = await consumer.beginning_offsets(self._places)
        ends: dict[TopicPartition, int] = await consumer.end_offsets(self._places)
        unplaced = []
        for place in self._places:
            position = self.positions[place.partition]
            if position is not None and first[place] <= position <= ends[place]:
                consumer.seek(place, position)
                continue
            self.resets += position is not None
            if first[place] < ends[place]:
                unplaced.append(place)
            else:
                self._seek(consumer, place, ends[place])
        await self._look_back(consumer, unplaced, ends)
        return ends

    async def _look_back(self, consumer: Any, places: list[TopicPartition], ends: dict[TopicPartition, int]) -> None:
        """Seek to the last record minus five seconds."""
        if not places:
            return
        last_ms = await _last_timestamps(consumer, places, ends)
        targets = {place: max(0, at - LOOK_BACK_MS) for place, at in last_ms.items()}
        found = await consumer.offsets_for_times(targets) if targets else {}
        for place in places:
            start = found.get(place)
            self._seek(consumer, place, ends[place] if start is None else min(start.offset, ends[place]))

    def _seek(self, consumer: Any, place: TopicPartition, offset: int) -> None:
        consumer.seek(place, offset)
        self.positions[place.partition] = offset

    async def _read(self, consumer: Any, ends: dict[TopicPartition, int]) -> None:
        heard_s = time.monotonic()
        self._note_progress(ends)
        while True:
            fetched = await consumer.getmany(timeout_ms=_POLL_MS)
            for place, records in fetched.items():
                for record in records:
                    self._take(place.partition, record)
                heard_s = time.monotonic()
            if fetched:
                self._note_progress(ends)
            elif time.monotonic() - heard_s > _SILENCE_S:
                await self._check_place(consumer)
                heard_s = time.monotonic()

    def _take(self, partition: int, record: Any) -> None:
        self.positions[partition] = record.offset + 1
        try:
            batch = decode_snapshots(record.value or b"")
        except WireError as error:
            self.undecodable += 1
            log.warning("snapshot record skipped: partition %d offset %d: %s", partition, record.offset, error)
            return
        self._last_record_s = time.monotonic()
        self.records += 1
        try:
            self._on_batch(partition, record.offset, batch)
        except Exception:  # one bad record must not blind us for those that follow
            self.callback_errors += 1
            log.exception("the callback for snapshots failed: partition %d offset %d", partition, record.offset)

    def _note_progress(self, ends: dict[TopicPartition, int]) -> None:
        for place in self._places:
            position = self.positions[place.partition]
            if position is not None and position >= ends[place]:
                self.caught_up[place.partition] = True

    async def _check_place(self, consumer: Any) -> None:
        """In a long silence: raise unless Kafka answers, the topic is there, and nothing unread is in it."""
        async with asyncio.timeout(_START_S):
            await self._check_topic(consumer)
            ends = await consumer.end_offsets(self._places)
        for place in self._places:
            if self.positions[place.partition] != ends[place]:
                raise _GoneError(f"at offset {self.positions[place.partition]} of {place}, which ends at {ends[place]}")


async def _last_timestamps(
    consumer: Any, places: list[TopicPartition], ends: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Timestamps of the last record of each partition, ms; a partition that does not give it is left out."""
    last_ms: dict[TopicPartition, int] = {}
    for place in places:
        consumer.seek(place, ends[place] - 1)
    deadline_s = time.monotonic() + _REQUEST_MS / 1000
    while len(last_ms) < len(places) and time.monotonic() < deadline_s:
        for place, records in (await consumer.getmany(*places, timeout_ms=200)).items():
            if place not in last_ms:
                last_ms[place] = records[-1].timestamp
    return last_ms
