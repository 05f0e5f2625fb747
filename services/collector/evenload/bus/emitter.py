"""Telemetry out of a process that must not notice Kafka: `add` is synchronous, never blocks and never raises.

Events of all instances of one partition share batches (lane.py); one task per partition sends them in order, one group
in flight, over one connection (link.py). A batch is never skipped and never numbered again, so readers see each
(incarnation, partition, sequence) without gaps; they may see one twice after a failure and drop the second.

The buffer is bounded. With a spool, what Kafka does not take for a second goes to disk, up to a bound too, and survives
the process (overflow.py). Beyond the bounds the *newest* events are lost and counted: dropping older ones would tear
holes into the sequences. What it does not handle: it belongs to one event loop and is not for other threads.
"""

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from evenload.bus.access import Address
from evenload.bus.client_logs import limited_logger
from evenload.bus.delivery import Delivery, OnAck
from evenload.bus.forever import Forever
from evenload.bus.lane import Lane, Pending
from evenload.bus.link import ProducerLink
from evenload.bus.logs import PERIOD_S
from evenload.bus.overflow import Overflow
from evenload.bus.spool.folder import SpoolFolder
from evenload.bus.topics import partition_for, topic_names
from evenload.schemas import Event
from evenload.settings.spool import SpoolSettings

log = limited_logger(__name__)

_KNOWN_MAX = 65_536  # instances whose partition is remembered
_VIEW_MS_MAX = 2**53
_LINGER_MS_START = 50  # before the first advice: not the shortest, for many producers may have started together
_TOGETHER_S = 0.002  # timers of one moment fire up to so far apart


class Placed(NamedTuple):
    """Where an event went, and when it happened.

    Attributes:
        partition, seq: the batch, of this incarnation; `index` is the event's place in it.
        at_ms: log time by the producer's estimate, as a reader of the batch will compute it (`view_ms` + `at`).
    """

    partition: int
    seq: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    at_ms: int


class Emitter:
    """The telemetry producer of a process.

    Attributes:
        incarnation: random 63-bit number of this object; with partition and sequence it names a batch.
        link: the connection, for a `RecordSender` to share.
        overflow: the spool, if there is one.
        buffered: events in memory only, that is, neither acknowledged nor on disk.
        lost: events dropped, by reason: `buffer_full` (and the disk full or not usable), `closed`.
        invalid_events: refused because no reader would accept them.
    """

    def __init__(
        self,
        bootstrap: Address,
        prefix: str,
        producer_name: str,
        *,
        partitions: int,
        linger_ms_min: int = 20,
        linger_ms_max: int = 500,
        buffer_events_max: int = 100_000,
        on_ack: OnAck | None = None,
        spool: SpoolSettings | None = None,
        link: ProducerLink | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Describe an emitter; `start` lets it send, and events may be added before.

        Args:
            bootstrap: Brokers, `host:port` with commas between.
            prefix: First part of the topics' names.
            producer_name: Name in the batches, for people; 1 to 255 characters.
            partitions: Of the telemetry topic.
            linger_ms_min: Shortest linger that is followed.
            linger_ms_max: Longest linger that is followed.
            buffer_events_max: Events kept for Kafka; newer ones are lost.
            on_ack: Called with (partition, seq, offset, timestamp_ms) of each acknowledged batch, in order; not called
                for a batch whose offset the broker no longer knew.
            spool: Where events go that Kafka does not take; without it, or without its `dir`, memory is all.
            link: The connection; made of the arguments above if not given.
            clock: Monotonic seconds.
            wall: Seconds of the host's clock, which tell the age of events that outlive the process.
        """
        self.incarnation = secrets.randbits(63)
        self.link = link or ProducerLink(bootstrap, producer_name, partitions)
        self.buffered = 0
        self.lost: Counter[str] = Counter(buffer_full=0, closed=0)
        self.invalid_events = 0
        self._topic = topic_names(prefix).telemetry
        self._producer = producer_name
        self._linger_ms = (linger_ms_min, linger_ms_max)
        self._buffer_events_max = buffer_events_max
        self._clock = clock
        self._wall = wall
        linger_ms = min(max(_LINGER_MS_START, linger_ms_min), linger_ms_max)
        self._lanes = [Lane(p, linger_ms) for p in range(partitions)]
        self.overflow = None if spool is None or spool.dir is None else self._overflow(spool.dir, spool)
        self._delivery = Delivery(
            self.link,
            self._topic,
            producer=(producer_name, self.incarnation),
            times=self._times,
            overflow=self.overflow,
            on_ack=on_ack,
            on_sent=self._sent,
        )
        self._lane_of: dict[str, Lane] = {}
        self._due = [asyncio.Event() for _ in range(partitions)]
        self._progress = asyncio.Event()
        self._senders: list[Forever] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._say_lost_at_s = -math.inf

    def __repr__(self) -> str:
        return (
            f"<Emitter {self._producer} incarnation={self.incarnation} buffered={self.buffered} "
            f"sent={self.sent_events} lost={self.lost_events} connected={self.link.connected}>"
        )

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def sent_batches(self) -> int:
        """Batches acknowledged by Kafka, whoever observed them."""
        return self._delivery.sent_batches

    @property
    def sent_events(self) -> int:
        """Events acknowledged by Kafka, whoever observed them."""
        return self._delivery.sent_events

    @property
    def acked(self) -> list[int]:
        """Per partition: sequences below this one are acknowledged."""
        return [lane.acked for lane in self._lanes]

    @property
    def lost_events(self) -> int:
        """All events that are lost, also those that are unreadable on disk."""
        unreadable = 0 if self.overflow is None else self.overflow.folder.figures.lost_events
        return self.lost.total() + unreadable

    @property
    def alive(self) -> bool:
        """Whether all senders and the spool are at work (with or without Kafka)."""
        spooling = self.overflow is None or self.overflow.alive
        return spooling and bool(self._senders) and all(sender.alive for sender in self._senders)

    @property
    def oldest_age_ms(self) -> float:
        """Age of the oldest batch that is not acknowledged, on disk or in memory; 0 if there is none."""
        opened = [at for lane in self._lanes if (at := lane.oldest_s()) is not None]
        on_disk = 0.0 if self.overflow is None else self.overflow.oldest_ms
        return max(on_disk, (self._clock() - min(opened)) * 1000) if opened else on_disk

    def start(self) -> None:
        """Begin to send, on the running loop. Kafka need not be there."""
        if self._senders or self._closed:
            return
        self._loop = asyncio.get_running_loop()
        if self.overflow is not None:
            self.overflow.start()
        for lane in self._lanes:
            lane.expire()
            self._senders.append(Forever(f"telemetry-{lane.partition}", partial(self._send, lane)))

    def add(self, event: Event, view_ms: int) -> Placed | None:
        """Take an event; the hot path.

        Args:
            event: What was observed; its `at` is set here.
            view_ms: The log's clock as the caller believes it is now; kept if the event opens a batch.

        Returns:
            Where it went; None if it was lost or is invalid.
        """
        if self.buffered >= self._buffer_events_max or self._closed:
            self._lose()
            return None
        try:
            lane = self._lane_of.get(event.instance) or self._lane(event.instance)
            batch, index, at = lane.add(event, self._clock(), view_ms if 0 <= view_ms <= _VIEW_MS_MAX else 0)
        except Exception as error:  # a caller's mistake must reach neither its own hot path nor the log
            self._refuse(event, error)
            return None
        self.buffered += 1
        if batch.due:
            self._due[lane.partition].set()
        elif index == 0 and self._loop is not None:
            self._loop.call_later(self._wait_s(lane, batch.opened_s), self._linger_over, lane, batch)
        return Placed(lane.partition, batch.seq, index, batch.view_ms + at)

    def advise(self, partition: int, linger_ms: int) -> None:
        """Follow the scorer's advice for a partition, within the bounds; batches already open are not affected."""
        if 0 <= partition < len(self._lanes):
            low, high = self._linger_ms
            self._lanes[partition].linger_ms = min(max(linger_ms, low), high)

    async def flush(self, timeout_s: float = 5.0) -> bool:
        """Send what has been added so far without waiting for lingers; tells whether Kafka has all of it."""
        wanted = [lane.next_seq for lane in self._lanes]
        for lane, due in zip(self._lanes, self._due, strict=True):
            lane.expire()
            due.set()
        try:
            async with asyncio.timeout(timeout_s):
                while any(lane.acked < seq for lane, seq in zip(self._lanes, wanted, strict=True)):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float = 5.0) -> bool:
        """Flush and leave. Tells whether Kafka has all; what it has not goes to disk, or is lost and counted."""
        self._closed = True
        complete = not self._unsent() or (bool(self._senders) and await self.flush(timeout_s))
        for sender in self._senders:
            await sender.stop()
        await self.link.close()
        if self.overflow is not None:
            await self.overflow.close()
            if events := self.overflow.folder.figures.events:
                log.info("%d telemetry events wait in %s for the next start", events, self.overflow.folder.path)
        if self.buffered:
            log.warning("%d telemetry events were not delivered in time and are lost", self.buffered)
            self.lost["closed"] += self.buffered
            self.buffered = 0
        return complete

    def _unsent(self) -> bool:
        return bool(self.buffered) or (
            self.overflow is not None and any(self.overflow.waiting(lane) for lane in self._lanes)
        )

    def _overflow(self, folder: Path, settings: SpoolSettings) -> Overflow:
        def freed(lane: Lane, events: int) -> None:
            self.buffered -= events
            self._due[lane.partition].set()

        return Overflow(
            SpoolFolder(folder / self._producer / self._topic, len(self._lanes), settings.max_bytes, settings.fsync),
            self._lanes,
            settings,
            encoded=lambda batch: batch.encoded(self._producer, self.incarnation, batch.opened_s),
            times=self._times,
            on_stored=freed,
        )

    def _times(self) -> tuple[float, float]:
        return self._wall() * 1000, self._clock() * 1000

    def _lane(self, instance: str) -> Lane:
        lane = self._lanes[partition_for(instance.encode(), len(self._lanes))]
        if len(self._lane_of) >= _KNOWN_MAX:
            self._lane_of.clear()
        self._lane_of[instance] = lane
        return lane

    def _lose(self) -> None:
        self.lost["closed" if self._closed else "buffer_full"] += 1
        now_s = self._clock()
        if not self._closed and now_s >= self._say_lost_at_s:  # even a line that is held back costs 20 us
            self._say_lost_at_s = now_s + PERIOD_S
            log.warning("the buffer of %d events is full, new telemetry is lost", self._buffer_events_max)

    def _refuse(self, event: Event, error: Exception) -> None:
        self.invalid_events += 1
        log.error("telemetry event refused: %s: %s: %r", type(error).__name__, error, event)

    def _wait_s(self, lane: Lane, now_s: float) -> float:
        """Set when the lane's open batch is due, and return how long that is.

        Lingers of one length end together in all lanes, and an event waits half of one on average; at other moments in
        every process.
        """
        linger_s = lane.linger_ms / 1000
        wait_s = linger_s - (now_s + self.incarnation % 1000 / 1000) % linger_s
        lane.due_s = now_s + wait_s
        return wait_s

    def _linger_over(self, lane: Lane, batch: Pending) -> None:
        """Let a batch go, and what else is due: one request takes it all."""
        batch.due = True
        self._due[lane.partition].set()
        soon_s = self._clock() + _TOGETHER_S
        for other in self._lanes:
            if other.due_s <= soon_s:
                other.expire()
                self._due[other.partition].set()

    async def _send(self, lane: Lane) -> None:
        due = self._due[lane.partition]
        if self.overflow is not None:
            await self.overflow.ready.wait()  # what an earlier process left comes first
        while True:
            due.clear()
            while await self._delivery.deliver(lane):
                pass
            await due.wait()

    def _sent(self, events: int) -> None:
        self.buffered -= events
        self._progress.set()
