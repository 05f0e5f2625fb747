"""One telemetry partition: records in; snapshots, state records and dead letters out.

House rules: synchronous, no Faust, no clock, no I/O; times are arguments (`mono_ms`, the caller's monotonic clock).
The shell (`app.py`) feeds records in order of offset, sends what the methods return, and says what was acknowledged.

Theory of operation. `position` is the offset of the last record applied. A state includes its events up to its `as_of`,
so records read again change nothing. `checkpoint` hands out the states that changed since the last one; once those are
acknowledged, records up to its `through` need never be read again. `snapshots` hands out what routers should know;
until `position` has reached everything that the recovered states include, it hands out nothing, because `as_of` and
`sequences` of a batch must hold for all its instances alike.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from evenload.schemas import (
    WIRE_VERSION,
    Batch,
    DeadLetter,
    InstanceSnapshot,
    InstanceState,
    SnapshotBatch,
    WireError,
    decode_batch,
    encode,
)
from evenload.scorer.changes import in_motion, meaningful
from evenload.scorer.linger import LingerAdvice
from evenload.scorer.pace import FlushPace
from evenload.scoring import ScoringConfig, fold, snapshot
from evenload.scoring.clock import tick_of

PAYLOAD_BYTES_MAX = 65_536  # of a dead letter
PRODUCERS_MAX = 65_536  # whose sequences wait for the next snapshots
SNAPSHOTS_PER_RECORD = 400  # of under 2 kB each: well below Kafka's 1 MB

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What all partitions of a worker have in common.

    Attributes:
        flush_ms: least time between two snapshots of an instance while the partition has few (`pace.py`).
        heartbeat_ms: most time between two snapshots of an instance.
        checkpoint_ms: least time between two checkpoints.
        instances_max: instances per partition; events of others go to the dead letters.
    """

    scorer: str = ""
    topic: str = "evenload.telemetry"
    flush_ms: float = 25.0
    heartbeat_ms: float = 2000.0
    checkpoint_ms: float = 1000.0
    target_records_per_s: float = 125.0
    instances_max: int = 20_000


@dataclass(slots=True)
class Counts:
    """What a worker has done since it started, over all its partitions.

    Attributes:
        duplicates: events that a state had already: a batch sent twice, or read again after a restart.
        missed: offsets that were never seen, because retention removed them first.
    """

    records: int = 0
    events: int = 0
    duplicates: int = 0
    missed: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State records to write, in this order: tombstones, then states.

    Attributes:
        through: telemetry offset up to which everything is in the changelog once these are acknowledged.
    """

    partition: int
    through: int
    tombstones: tuple[str, ...]
    states: dict[str, bytes]

    def records(self) -> list[tuple[str, bytes | None]]:
        """Return key and value of each record, in the order of writing."""
        return [(name, None) for name in self.tombstones] + list(self.states.items())


@dataclass(slots=True)
class _Published:
    mono_ms: float
    snapshot: InstanceSnapshot


class PartitionScorer:
    """The states of one telemetry partition."""

    def __init__(
        self,
        partition: int,
        options: Options,
        config_of: Callable[[str], ScoringConfig],
        *,
        states: dict[str, InstanceState] | None = None,
        position: int = -1,
        caught_up_at: int = -1,
        rewrite: frozenset[str] = frozenset(),
        owns: Callable[[str], bool] = lambda _: True,
        counts: Counts | None = None,
    ) -> None:
        """Start with what recovery found.

        Args:
            partition: telemetry partition, which is also that of snapshots and state.
            options: of the worker.
            config_of: scoring config by instance id.
            states: recovered states.
            position: offset before the first one that will be read.
            caught_up_at: offset up to which any recovered state record vouches.
            rewrite: instances whose state record in the changelog is older than it should be.
            owns: whether an instance belongs to this partition.
            counts: to add to.
        """
        self.partition = partition
        self.states = states or {}
        self.position = position
        self.counts = counts if counts is not None else Counts()
        self.linger = LingerAdvice(options.target_records_per_s)
        self.pace = FlushPace(options.flush_ms)
        self._options = options
        self._config_of = config_of
        self._owns = owns
        self._log_ms = max((state.log_ms for state in self.states.values()), default=0)
        self._seen_ms: float | None = None
        self._now_ms = self._log_ms
        self._include = max((state.as_of for state in self.states.values()), default=-1)
        self._caught_up_at = caught_up_at
        self._rewrite = set(rewrite)
        self._dirty: set[str] = set()
        self._buried: set[str] = set()
        self._durable = position
        self._checkpoint_ms: float | None = None
        self._touched = set(self.states)
        self._moving: set[str] = set()
        self._moved = 0  # tick up to which the moving ones were looked at
        self._published: dict[str, _Published] = {}  # published longest ago first
        self._heard = _sequences(self.states)

    def __repr__(self) -> str:
        return f"<PartitionScorer {self.partition} at {self.position}: {len(self.states)} instances>"

    @property
    def durable(self) -> int:
        """Offset up to which the changelog includes everything."""
        return self._durable

    def now_ms(self, mono_ms: float) -> int:
        """Return the log time now: that of the last record and the time since it was seen; never backwards."""
        elapsed_ms = 0.0 if self._seen_ms is None else mono_ms - self._seen_ms
        self._now_ms = max(self._now_ms, self._log_ms + int(elapsed_ms))
        return self._now_ms

    # ---- records

    def follows(self, offset: int) -> bool:
        """Tell whether a record may be applied: those before it were. Later ones must be read again in their turn."""
        return offset <= self.position + 1

    def skip_to(self, offset: int) -> None:
        """Go on at `offset` though records before it were never seen: the log begins there now."""
        if offset > self.position + 1:
            self.counts.missed += offset - self.position - 1
            self.position = offset - 1

    def on_record(self, offset: int, timestamp_ms: int, data: bytes, mono_ms: float) -> DeadLetter | None:
        """Apply a telemetry record; returns what must go to the dead letters before the record may be forgotten.

        Args:
            offset: of the record; one that was applied already is ignored.
            timestamp_ms: of the record (LogAppendTime).
            data: its value.
            mono_ms: when it was seen.
        """
        if offset <= self.position:
            return None
        self._advance(offset, timestamp_ms, mono_ms)
        try:
            batch = decode_batch(data)
        except WireError as error:
            return self._dead_letter(offset, data, error.reason, str(error))
        refused = self._refused(batch)
        if refused:
            kept = [event for event in batch.events if event.instance not in refused]
            batch = msgspec.structs.replace(batch, events=kept)
        try:
            changed = fold(self.states, batch, offset, timestamp_ms, self._config_of)
        except Exception as error:  # one record must not stop all others: it would do so again after every restart
            logger.exception("partition %d: record %d could not be folded", self.partition, offset)
            return self._dead_letter(offset, data, "fold", repr(error))
        self._take(batch, changed)
        if not refused:
            return None
        reason, names = next(iter(refused.values())), sorted(refused)
        return self._dead_letter(offset, data, reason, f"{reason}: {', '.join(names[:5])} ({len(names)} in all)")

    def _advance(self, offset: int, timestamp_ms: int, mono_ms: float) -> None:
        assert self.follows(offset), f"record {offset} came when {self.position + 1} was due"
        self.position = offset
        self.counts.records += 1
        if self._seen_ms is None:
            self._seen_ms = mono_ms  # what recovery knew is as old as it may be: time goes on from there
        if timestamp_ms >= self._log_ms:
            self._log_ms, self._seen_ms = timestamp_ms, mono_ms
        self.linger.record()

    def _refused(self, batch: Batch) -> dict[str, str]:
        """Return the instances of a batch that this partition does not take, with the reason."""
        refused: dict[str, str] = {}
        new: set[str] = set()
        for event in batch.events:
            name = event.instance
            if name in self.states or name in new or name in refused:
                continue
            if not self._owns(name):
                refused[name] = "foreign_instance"
            elif len(self.states) + len(new) >= self._options.instances_max:
                refused[name] = "too_many_instances"
            else:
                new.add(name)
        return refused

    def _take(self, batch: Batch, changed: dict[str, InstanceState]) -> None:
        self.states.update(changed)
        self._dirty.update(changed)
        self._touched.update(changed)
        self._buried.difference_update(changed)
        applied = len(batch.events)
        for event in batch.events:
            if event.instance not in changed:
                applied -= 1
        self.counts.events += applied
        self.counts.duplicates += len(batch.events) - applied
        if self._heard.get(batch.incarnation, -1) < batch.seq:
            self._heard[batch.incarnation] = batch.seq
            if len(self._heard) > PRODUCERS_MAX:
                del self._heard[next(iter(self._heard))]

    def _dead_letter(self, offset: int, data: bytes, reason: str, detail: str) -> DeadLetter:
        self.counts.dead_letters[reason] += 1
        return DeadLetter(
            v=WIRE_VERSION,
            topic=self._options.topic,
            partition=self.partition,
            offset=offset,
            reason=detail if detail.startswith(reason) else f"{reason}: {detail}",
            size=len(data),
            payload=data[:PAYLOAD_BYTES_MAX],
        )

    # ---- snapshots

    def snapshots(self, mono_ms: float) -> list[SnapshotBatch]:
        """Return the snapshots that are due, as records of bounded size; most often one or none.

        Due is an instance that changed meaningfully (`changes.py`) and was not published for a moment (`pace.py`), and
        any instance not published for `heartbeat_ms`.
        """
        self.linger.update(mono_ms, self._log_ms)
        self.pace.update(mono_ms)
        if self.position < self._include:
            return []
        if self._seen_ms is None:
            self._seen_ms = mono_ms
        now_ms = self.now_ms(mono_ms)
        due = self._due(mono_ms, now_ms)
        if not due:
            return []
        self.pace.published(len(due))
        sequences, self._heard = self._heard, {}
        return [
            SnapshotBatch(
                v=WIRE_VERSION,
                partition=self.partition,
                as_of=self.position,
                now_ms=now_ms,
                linger_ms=self.linger.linger_ms,
                sequences=sequences,
                snapshots=due[start : start + SNAPSHOTS_PER_RECORD],
                scorer=self._options.scorer,
            )
            for start in range(0, len(due), SNAPSHOTS_PER_RECORD)
        ]

    def unpublished(self, batch: SnapshotBatch) -> None:
        """Take back a record that was not acknowledged: its content is due again."""
        for item in batch.snapshots:
            self._published.pop(item.state.instance, None)
            if item.state.instance in self.states:
                self._touched.add(item.state.instance)
        for incarnation, seq in batch.sequences.items():
            self._heard[incarnation] = max(seq, self._heard.get(incarnation, -1))

    def _due(self, mono_ms: float, now_ms: int) -> list[InstanceSnapshot]:
        heartbeat_ms = self._options.heartbeat_ms - self._options.flush_ms  # the next flush may be too late
        silent: list[str] = []
        for name, published in self._published.items():
            if mono_ms - published.mono_ms < heartbeat_ms:
                break
            silent.append(name)
        due = [self._publish(name, mono_ms, now_ms) for name in silent]
        if tick_of(now_ms) != self._moved:  # between two ticks nothing moves by itself
            self._moved = tick_of(now_ms)
            self._touched |= self._moving
        for name in sorted(self._touched.difference(silent)):
            last = self._published.get(name)
            if last is not None and mono_ms - last.mono_ms < self.pace.interval_ms:
                continue
            item = snapshot(self.states[name], now_ms, self._config_of(name))
            self._touched.discard(name)
            if last is None or meaningful(last.snapshot, item):
                due.append(self._publish(name, mono_ms, now_ms, item))
        return due

    def _publish(
        self, name: str, mono_ms: float, now_ms: int, item: InstanceSnapshot | None = None
    ) -> InstanceSnapshot:
        if item is None:
            item = snapshot(self.states[name], now_ms, self._config_of(name))
        self._published.pop(name, None)
        self._published[name] = _Published(mono_ms, item)
        self._touched.discard(name)
        if in_motion(item):
            self._moving.add(name)
        else:
            self._moving.discard(name)
        return item

    # ---- checkpoints

    def checkpoint(self, mono_ms: float, force: bool = False) -> Checkpoint | None:
        """Return what must be written to the changelog now, or None.

        Args:
            mono_ms: now.
            force: also when the last one was less than `checkpoint_ms` ago.
        """
        last_ms = self._checkpoint_ms
        if not force and last_ms is not None and mono_ms - last_ms < self._options.checkpoint_ms:
            return None
        self._checkpoint_ms = mono_ms
        self._bury(self.now_ms(mono_ms))
        catching_up = self.position < self._caught_up_at
        if not catching_up and self._rewrite:
            self._dirty |= self._rewrite & self.states.keys()
            self._rewrite.clear()
        if not (self._dirty or self._buried or self.position > self._durable):
            return None
        if self._buried and not self._dirty and self.states:
            # Faust's recovery waits for the last offset of the changelog: it must not be one that compaction removes.
            self._dirty.add(self._newest())
        names, self._dirty = sorted(self._dirty), set()
        tombstones, self._buried = tuple(sorted(self._buried)), set()
        if catching_up:
            self._rewrite.update(names)
        return Checkpoint(
            self.partition, self.position, tombstones, {name: encode(self.states[name]) for name in names}
        )

    def acknowledged(self, checkpoint: Checkpoint) -> None:
        """Note that all records of a checkpoint are in the changelog."""
        self._durable = max(self._durable, checkpoint.through)

    def unacknowledged(self, checkpoint: Checkpoint) -> None:
        """Take back a checkpoint of which some record was not acknowledged: all of it is due again."""
        self._dirty.update(name for name in checkpoint.states if name in self.states)
        self._buried.update(name for name in checkpoint.tombstones if name not in self.states)

    def _bury(self, now_ms: int) -> None:
        """Forget instances that left long ago, except the newest state, which marks how far the changelog goes."""
        gone = [
            name
            for name, state in self.states.items()
            if state.left_ms is not None and now_ms - state.left_ms >= self._config_of(name).grave_ms
        ]
        if not gone:
            return
        newest = self._newest()
        for name in gone:
            if name == newest:
                continue
            del self.states[name]
            self._published.pop(name, None)
            for names in (self._dirty, self._touched, self._moving, self._rewrite):
                names.discard(name)
            self._buried.add(name)

    def _newest(self) -> str:
        return max(self.states.values(), key=lambda state: (state.as_of, state.instance)).instance


def _sequences(states: dict[str, InstanceState]) -> dict[int, int]:
    """Return the last sequence per producer that any state includes."""
    found: dict[int, int] = {}
    for state in states.values():
        for incarnation, seq in state.watermarks.items():
            if found.get(incarnation, -1) < seq:
                found[incarnation] = seq
    return found
