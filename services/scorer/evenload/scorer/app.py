"""The Faust shell round `core.py`: one worker of the consumer group.

An agent applies telemetry and remembers each event; `publish` sends due snapshots; `checkpoint` writes changed states
to the changelog, awaits their acknowledgement and only then acknowledges the remembered events (docs/decisions/0002).
All of it runs in one event loop, so `PartitionScorer` needs no locks; whoever awaits looks afterwards whether the
partition is still the same.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faust
from faust.tables.recovery import RebalanceAgain
from faust.types import TP

from evenload.bus.access import Address
from evenload.bus.topics import MESSAGE_BYTES_MAX, partition_for, topic_names
from evenload.schemas import DeadLetter, SnapshotBatch, encode
from evenload.scorer.core import Checkpoint, Counts, Options, PartitionScorer
from evenload.scorer.table import StateTable
from evenload.scorer.transport import QuickTransport
from evenload.scoring import ScoringConfig
from evenload.settings import Settings

DEAD_LETTERS_MAX = 1_000  # not acknowledged yet, per partition; beyond, the agent waits
FETCH_BYTES = 131_072  # per partition: Faust works off all that was fetched of some before it asks for the others
BUFFER_EVENTS = 2048  # records between Faust's fetcher and the agent: all that one fetch brings, else fetches stall
YIELD_MS = 20.0  # the agent lets the timers run at least this often while it works off a backlog

logger = logging.getLogger(__name__)


class Fatal(Exception):
    """The worker cannot go on and must be started anew."""


@dataclass(slots=True)
class Activity:
    """What the shell has done, beside what `Counts` says; `metrics.py` shows it.

    Attributes:
        rewound: records read again because the changelog lacked them.
        reseeks: times that Faust had lost its place in a partition.
        published_ms: when each partition's last snapshots were acknowledged, monotonic.
    """

    rebalances: int = 0
    recoveries: int = 0
    rewound: int = 0
    reseeks: int = 0
    overtaken: int = 0
    unreadable: int = 0
    apply_s: float = 0.0
    snapshots: int = 0
    snapshot_records: int = 0
    checkpoints: int = 0
    checkpoint_s: float = 0.0
    states_written: int = 0
    send_failures: int = 0
    published_ms: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Assigned:
    """A partition that this worker owns.

    Attributes:
        since: where the changelog ended when it was taken over.
        pending: events applied and not acknowledged, in order.
        dead_letters: records that could not be applied and are not among the dead letters yet.
    """

    scorer: PartitionScorer
    since: int
    pending: list[Any] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)


class ScorerApp:
    """The Faust app, its agent, and what its timers call.

    Attributes:
        assigned: partitions by number; empty from a revocation until recovery is complete.
        recovered: whether the worker has what its group gave it.
    """

    def __init__(
        self,
        settings: Settings,
        brokers: Address,
        config_of: Callable[[str], ScoringConfig],
        name: str,
        datadir: Path,
    ) -> None:
        """Describe the worker; nothing is connected before `faust.start`.

        Args:
            settings: all of them.
            brokers: how to reach Kafka.
            config_of: scoring config by instance id.
            name: of this worker, written into its snapshots.
            datadir: an existing folder that Faust insists on.
        """
        self.topics = topic_names(settings.kafka.topic_prefix)
        self.counts = Counts()
        self.activity = Activity()
        self.assigned: dict[int, Assigned] = {}
        self.recovered = False
        self._unsettled = False
        self._partitions = settings.kafka.partitions
        self._config_of = config_of
        self._options = Options(
            scorer=name,
            topic=self.topics.telemetry,
            flush_ms=settings.scorer.flush_ms,
            heartbeat_ms=settings.scorer.heartbeat_ms,
            checkpoint_ms=settings.scorer.checkpoint_ms,
            target_records_per_s=settings.scorer.target_records_per_s,
        )
        self._failure: asyncio.Future[None] | None = None
        self.faust = _faust_app(settings, brokers, datadir)
        self.table = self._declare()

    def _declare(self) -> StateTable:
        app = self.faust
        self._dead_letters = self._topic(self.topics.dead_letters)
        table = StateTable(app, name="state", changelog_topic=self._topic(self.topics.state, compacting=True))
        app.tables.add(table)
        app.agent(self._topic(self.topics.telemetry), name="apply")(self._agent)
        app.on_partitions_revoked.connect(self._on_partitions_revoked)
        app.on_rebalance_complete.connect(self._on_rebalance_complete)
        return table

    def _topic(self, name: str, **options: Any) -> Any:
        raw = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
        return self.faust.topic(name, partitions=self._partitions, **raw, **options)

    def place(self, partition: int) -> TP:
        """Return Faust's name of a telemetry partition."""
        return TP(self.topics.telemetry, partition)

    async def failure(self) -> None:
        """Wait until the worker cannot go on; raises why."""
        self._failure = asyncio.get_running_loop().create_future()
        await self._failure

    def fail(self, error: BaseException) -> None:
        """End the worker; the first reason counts."""
        logger.error("the worker ends: %s", error)
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    # ---- rebalances

    async def _on_partitions_revoked(self, *_: Any, **__: Any) -> None:
        self.recovered = False
        self.assigned.clear()
        self.activity.rebalances += 1
        self.activity.published_ms.clear()

    async def _on_rebalance_complete(self, *_: Any, **__: Any) -> None:
        """Take over what was assigned: states are recovered, no telemetry has come through yet."""
        consumer = self.faust.consumer
        mine = [tp for tp in consumer.assignment() if tp.topic == self.topics.telemetry]
        # Faust asks for the committed offsets in this way right after us, and goes on from there.
        committed = await consumer.seek_to_committed() if mine else {}
        assigned: dict[int, Assigned] = {}
        for tp in mine:
            taken = await self._take_over(tp, committed.get(tp))
            assigned[tp.partition] = Assigned(taken, self.table.recovered[tp.partition].end)
        self.assigned = assigned
        self.activity.recoveries += 1
        self.recovered = self._unsettled = True
        logger.info("owns partitions %s", sorted(assigned) or "none")

    async def _take_over(self, tp: TP, committed: int | None) -> PartitionScorer:
        found = self.table.recovered[tp.partition]
        resume = await self._resume(tp, committed, found.resume(committed))
        self.activity.overtaken += found.overtaken
        self.activity.unreadable += found.unreadable
        found.overtaken = found.unreadable = 0
        return PartitionScorer(
            tp.partition,
            self._options,
            self._config_of,
            states=found.states(),
            position=resume - 1,
            caught_up_at=found.through,
            rewrite=frozenset(found.suspects),
            owns=lambda name: partition_for(name.encode(), self._partitions) == tp.partition,
            counts=self.counts,
        )

    async def _resume(self, tp: TP, committed: int | None, wanted: int | None) -> int:
        """Make Faust go on at the offset that recovery wants, and return it."""
        consumer = self.faust.consumer
        resume = wanted
        if committed is None or resume is None or resume < committed:
            resume = max(resume or 0, (await consumer.earliest_offsets(tp))[tp])
        if committed is not None and resume < committed:
            logger.warning(
                "partition %d: reads again from offset %d, not %d: the changelog lacks it",
                tp.partition,
                resume,
                committed,
            )
            self.activity.rewound += committed - resume
            # Private: nothing public moves a committed offset backwards, and Faust is about to seek to it.
            if not await consumer._commit({tp: resume}):
                raise RebalanceAgain  # Faust's own word for it; another rebalance follows
        # Faust does not seek where nothing, or 0, is committed, though it may have dropped records while rebalancing.
        await consumer.seek_wait({tp: resume})
        return resume

    async def settle(self) -> None:
        """Once Faust is done with a rebalance, tell it each partition's place: it empties its buffers after seeking."""
        if self._unsettled and self.recovered and not self.faust.rebalancing:
            self._unsettled = False
            await self._seek(self.assigned)

    async def find_place(self, partitions: Iterable[int]) -> None:
        """Make Faust read on where partitions stand: records wait, and it does not bring them."""
        lost = [partition for partition in partitions if partition in self.assigned]
        if lost:
            self.activity.reseeks += len(lost)
            logger.warning("partitions %s stand still: told Faust again where to read", lost)
            await self._seek(lost)

    async def _seek(self, partitions: Iterable[int]) -> None:
        places = {self.place(partition): self.assigned[partition].scorer.position + 1 for partition in partitions}
        if not places:
            return
        try:
            await self.faust.consumer.seek_wait(places)
        except (
            Exception
        ) as error:  # partitions move, most likely: whoever owns them next seeks anew, and so does the watch
            logger.info("Faust could not be told where to read: %r", error)

    # ---- telemetry

    async def _agent(self, stream: Any) -> None:
        try:
            await self._apply(stream)
        except Exception as error:
            logger.exception("the agent failed")
            self.fail(Fatal(f"the agent failed: {error!r}"))
            raise

    async def _apply(self, stream: Any) -> None:
        yielded_ms = _mono_ms()
        async for event in stream.noack().events():
            message = event.message
            owned = self.assigned.get(message.partition)
            if owned is None or not owned.scorer.follows(message.offset):
                continue  # it is read again: by the new owner after a rebalance, or by us after a seek
            start_ms = _mono_ms()
            letter = owned.scorer.on_record(
                message.offset, round(message.timestamp * 1000), message.value or b"", start_ms
            )
            owned.pending.append(event)
            if letter is not None:
                owned.dead_letters.append(letter)
                logger.warning(
                    "dead letter: %s %d %d: %s", letter.topic, letter.partition, letter.offset, letter.reason
                )
            end_ms = _mono_ms()
            self.activity.apply_s += (end_ms - start_ms) / 1000
            if len(owned.dead_letters) >= DEAD_LETTERS_MAX:
                await self._send_dead_letters(owned)
            if end_ms - yielded_ms >= YIELD_MS:
                await asyncio.sleep(0)
                yielded_ms = _mono_ms()

    # ---- what the timers call

    async def publish(self) -> None:
        """Send the snapshots that are due, and wait until Kafka has them."""
        now_ms = _mono_ms()
        due = [(owned, batch) for owned in self.assigned.values() for batch in owned.scorer.snapshots(now_ms)]
        sent = await asyncio.gather(*(self._send_snapshots(batch) for _, batch in due))
        for (owned, batch), acknowledged in zip(due, sent, strict=True):
            if acknowledged:
                self.activity.snapshots += len(batch.snapshots)
                self.activity.snapshot_records += 1
                self.activity.published_ms[batch.partition] = _mono_ms()
            else:
                owned.scorer.unpublished(batch)

    async def checkpoint(self, force: bool = False) -> None:
        """Write what changed to the changelog, wait until Kafka has it, and acknowledge the telemetry it covers."""
        start_ms = _mono_ms()
        await asyncio.gather(*(self._checkpoint(owned, start_ms, force) for owned in list(self.assigned.values())))

    async def _checkpoint(self, owned: Assigned, now_ms: float, force: bool) -> None:
        checkpoint = owned.scorer.checkpoint(now_ms, force)
        if checkpoint is None:
            return
        covered = len(owned.pending)
        written, reported = await asyncio.gather(self._write(checkpoint, owned.since), self._send_dead_letters(owned))
        if not (written and reported):
            owned.scorer.unacknowledged(checkpoint)
            return
        if self.assigned.get(checkpoint.partition) is not owned:
            return  # revoked meanwhile: the new owner recovers what was written, and reads on from the last commit
        owned.scorer.acknowledged(checkpoint)
        for event in owned.pending[:covered]:
            event.ack()
        del owned.pending[:covered]
        self.activity.checkpoints += 1
        self.activity.states_written += len(checkpoint.states)
        self.activity.checkpoint_s += (_mono_ms() - now_ms) / 1000

    async def _write(self, checkpoint: Checkpoint, since: int) -> bool:
        futures = [
            self.table.write(checkpoint.partition, name, data, checkpoint.through, since)
            for name, data in checkpoint.records()
        ]
        return await self._all_sent(futures)

    async def _send_dead_letters(self, owned: Assigned) -> bool:
        letters = list(owned.dead_letters)
        futures = [
            self._dead_letters.send_soon(key=None, value=encode(letter), partition=letter.partition)
            for letter in letters
        ]
        if not await self._all_sent(futures):
            return False
        del owned.dead_letters[: len(letters)]
        return True

    async def _send_snapshots(self, batch: SnapshotBatch) -> bool:
        return await self._all_sent([self._produce_snapshots(batch)])

    async def _produce_snapshots(self, batch: SnapshotBatch) -> None:
        """Write a record past Faust's queue, which feeds the client one by one; so one request takes all."""
        producer = await self.faust.maybe_start_producer()
        key = b"p%d" % batch.partition
        await producer.send_and_wait(self.topics.snapshots, key, encode(batch), batch.partition, None, None)

    async def _all_sent(self, futures: list[Any]) -> bool:
        results = await asyncio.gather(*futures, return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        if failed:
            self.activity.send_failures += len(failed)
            logger.warning("%d of %d records were not taken by Kafka: %r", len(failed), len(futures), failed[0])
        return not failed

    # ---- the end

    async def leave(self) -> None:
        """Write a last checkpoint and commit it, so that the next owner has nothing to read again."""
        await self.checkpoint(force=True)
        if self.assigned:
            await self.faust.consumer.commit()


def _mono_ms() -> float:
    return time.monotonic() * 1000


def _faust_app(settings: Settings, brokers: Address, datadir: Path) -> faust.App:
    session_s = settings.scorer.session_timeout_s
    app = faust.App(
        settings.scorer.app_id,
        broker=";".join(f"kafka://{address}" for address in settings.kafka.bootstrap.split(",")),
        broker_credentials=_credentials(brokers),
        topic_allow_declare=False,  # they are there already, and making some is a right of its own
        datadir=str(datadir),
        store="memory://",
        web_enabled=False,
        topic_disable_leader=True,
        topic_partitions=settings.kafka.partitions,
        broker_session_timeout=session_s,
        broker_heartbeat_interval=settings.scorer.heartbeat_interval_s,
        broker_rebalance_timeout=max(10, 2 * session_s),
        broker_request_timeout=max(30, session_s),
        broker_commit_interval=1.0,
        table_standby_replicas=0,  # in memory they save nothing, and each rebalance waits 3 s longer for them
        stream_buffer_maxsize=BUFFER_EVENTS,
        consumer_max_fetch_size=FETCH_BYTES,
        # Faust's own check takes a quiet changelog for a stuck stream, every 10 s from the fifth minute on; the
        # watchdog knows which partitions must make progress.
        stream_processing_timeout=1e9,
        stream_wait_empty=False,  # what is not acknowledged is read again; waiting would hold up rebalances
        producer_request_timeout=60.0,
        producer_max_request_size=MESSAGE_BYTES_MAX,
        producer_max_batch_size=65_536,
        producer_compression_type="zstd",
    )
    app.transport = QuickTransport(app.conf.broker_consumer, app)
    return app


def _credentials(brokers: Address) -> Any:
    """Say in Faust's words how to reach the brokers; it makes its clients' arguments of them itself."""
    if isinstance(brokers, str):
        return None
    if brokers.mechanism is None:
        return faust.SSLCredentials(brokers.context)
    return faust.SASLCredentials(
        username=brokers.username,
        password=brokers.password,
        mechanism=brokers.mechanism,
        ssl_context=brokers.context,
    )
