"""The events of one telemetry partition on their way to Kafka: which batch they join, and when it may go.

No clock and no I/O here: time is an argument, in seconds of the producer's monotonic clock. A batch is open until its
linger is over or it is full; while an earlier one is being sent it stays open, so a slow Kafka gets fewer, larger
records by itself. Closed batches keep their order and their sequence until Kafka has acknowledged them, in memory or on
disk; those on disk are the oldest (overflow.py).
"""

import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from evenload.bus.spool.cursor import Position
from evenload.schemas import WIRE_VERSION, Batch, Event, encode

EVENTS_MAX = 500  # per batch
BATCH_BYTES_MAX = 200_000  # of events; one batch holds one event beyond it at most
GROUP_BYTES_MAX = 600_000  # of batches that go in one request
_AGE_MS_MAX = 1e9  # the wire's own bound

_check = msgspec.msgpack.Decoder(Event).decode


class Pending:
    """A batch that Kafka has not acknowledged.

    Attributes:
        seq: its sequence, unique in its partition for this process.
        opened_s: when it was opened.
        view_ms: the log's clock at that moment, as the producer believes.
        events: encoded, so that a resend is the same and its size is known.
        size: bytes of all events.
        due: whether its linger is over.
        position: the place after it on disk, if it is there.
    """

    __slots__ = ("due", "events", "opened_s", "position", "seq", "size", "view_ms")

    def __init__(self, seq: int, opened_s: float, view_ms: int) -> None:
        self.seq = seq
        self.opened_s = opened_s
        self.view_ms = view_ms
        self.events: list[Raw] = []
        self.size = 0
        self.due = False
        self.position: Position | None = None

    def __repr__(self) -> str:
        return f"<Pending seq={self.seq} events={len(self.events)} bytes={self.size} due={self.due}>"

    def encoded(self, producer: str, incarnation: int, now_s: float) -> bytes:
        """Return the record, with the age that it has at `now_s`."""
        return encode(
            Batch(
                producer=producer,
                incarnation=incarnation,
                seq=self.seq,
                events=self.events,  # type: ignore[arg-type]  # encoded already, which the wire does not show
                age_ms=round(min(max(0.0, (now_s - self.opened_s) * 1000), _AGE_MS_MAX), 1),
                view_ms=self.view_ms,
                v=WIRE_VERSION,
            )
        )


class Acked(NamedTuple):
    """What was acknowledged.

    Attributes:
        events: how many that were in memory only.
        stored_records, stored_events: how many that were on disk, too.
        position: the place on disk after the last of those.
    """

    events: int
    stored_records: int
    stored_events: int
    position: Position


class Lane:
    """One partition.

    Attributes:
        linger_ms: how long its next batches stay open.
        acked: sequences below this one are acknowledged.
        due_s: when the open batch should go; for its owner to set and to look at.
    """

    __slots__ = ("_closed", "_in_flight", "_next_seq", "_open", "acked", "due_s", "linger_ms", "partition")

    def __init__(self, partition: int, linger_ms: int) -> None:
        self.partition = partition
        self.linger_ms = linger_ms
        self.acked = 0
        self.due_s = math.inf
        self._next_seq = 0
        self._open: Pending | None = None
        self._closed: deque[Pending] = deque()
        self._in_flight = 0  # the oldest of them are being sent

    def __repr__(self) -> str:
        return f"<Lane {self.partition} acked={self.acked} closed={len(self._closed)} open={self._open}>"

    @property
    def next_seq(self) -> int:
        """Sequence of the batch after the newest."""
        return self._next_seq

    def add(self, event: Event, now_s: float, view_ms: int) -> tuple[Pending, int, int]:
        """Append an event to the open batch.

        Returns:
            The batch, the event's index in it, and its `at`. Index 0 has just opened it; a full one is `due`.

        Raises:
            Exception: the event could not be read back (whatever the reason); nothing has changed then. One such event
                would make its whole batch unreadable.
        """
        batch = self._open
        # By the view's clock, not the monotonic one: an auditor must get the very times that the producer's view used.
        at = 0 if batch is None else max(0, view_ms - batch.view_ms)
        data = encode(event if event.at == at else replace(event, at=at))
        _check(data)
        if batch is None:
            batch = self._open = Pending(self._next_seq, now_s, view_ms)
            self._next_seq += 1
        index = len(batch.events)
        batch.events.append(Raw(data))
        batch.size += len(data)
        if index + 1 >= EVENTS_MAX or batch.size >= BATCH_BYTES_MAX:
            batch.due = True
            self._close()
        return batch, index, at

    def expire(self) -> None:
        """Let the open batch go with the next group."""
        if self._open is not None:
            self._open.due = True

    def group(self) -> list[Pending]:
        """Return what is to be sent next, oldest first; the same again until it is acknowledged."""
        if self._open is not None and self._open.due:
            self._close()
        size = 0
        group: list[Pending] = []
        for batch in self._closed:
            size += batch.size
            if group and size > GROUP_BYTES_MAX:
                break
            group.append(batch)
        self._in_flight = len(group)
        return group

    def acknowledge(self, count: int) -> Acked:
        """Forget the oldest `count` batches."""
        events = records = stored = 0
        position: Position = (0, 0)
        for batch in [self._closed.popleft() for _ in range(count)]:
            self.acked = batch.seq + 1
            if batch.position is None:
                events += len(batch.events)
            else:
                records, stored, position = records + 1, stored + len(batch.events), batch.position
        self.release()
        return Acked(events, records, stored, position)

    # ---- what goes to disk

    def late(self, before_s: float) -> list[Pending]:
        """Return all closed batches that are not on disk, if the oldest was opened before; closes one that is due."""
        if self._open is not None and self._open.due and self._open.opened_s <= before_s:
            self._close()
        memory = [batch for batch in self._closed if batch.position is None]
        return memory if memory and memory[0].opened_s <= before_s else []

    def stored(self, batches: Sequence[tuple[Pending, Position]]) -> int:
        """Note where the oldest ones that were not on disk are now, and drop those not being sent.

        Returns:
            How many events they have.
        """
        for batch, position in batches:
            batch.position = position
        sending = [self._closed.popleft() for _ in range(self._in_flight)]
        while self._closed and self._closed[0].position is not None:
            self._closed.popleft()
        self._closed.extendleft(reversed(sending))
        return sum(len(batch.events) for batch, _ in batches)

    def release(self) -> None:
        """Nothing is being sent any more: what is on disk is dropped, to be read from there."""
        self._in_flight = 0
        while self._closed and self._closed[0].position is not None:
            self._closed.popleft()

    def close_open(self) -> None:
        """Close the open batch, if there is one, before its time."""
        if self._open is not None:
            self._close()

    def oldest_s(self) -> float | None:
        """When the oldest batch was opened that is not acknowledged; None if there is none."""
        for batch in itertools.chain(self._closed, () if self._open is None else (self._open,)):
            return batch.opened_s
        return None

    def _close(self) -> None:
        assert self._open is not None
        self._closed.append(self._open)
        self._open = None
        self.due_s = math.inf
