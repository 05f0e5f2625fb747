"""A router's view = newest snapshot + its own tail.

Per instance the view holds the newest snapshot's compact state and, on top of it, the router's own events that the
snapshot does not include; each own event is present exactly once. A snapshot includes a batch when its `sequences`
say so (also for a batch whose acknowledgement never came) or when the batch's offset, once known, is at or below
`as_of`. What `sequences` say holds from the `as_of` of their record on only: after a crash the next scorer publishes
states that are older than the last ones of its predecessor. When Kafka is gone the same code goes on with the tail
alone. Own load comes from leases; `RouterLoad` events only say which part of a snapshot's summed loads is the router's
own.

The tail is bounded: events beyond 4,096 or older than 10 s are folded into the base and counted.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping

from evenload.routing.leases import Counts
from evenload.routing.policy import InstanceView
from evenload.schemas import Event, InstanceSnapshot, InstanceState, RouterLoad, SnapshotBatch, Tail
from evenload.scoring import ScoringConfig, apply, apply_all, at, fresh, score
from evenload.scoring.clock import TICK_MS

TAIL_EVENTS_MAX = 4_096
TAIL_AGE_MS_MAX = 10_000
OFFSETS_MAX = 4_096  # acknowledged batches remembered per partition
NOBODY = (0, 0, 0, 0)
MARKS_MAX = 1_024  # snapshots records remembered per partition for what they say of own batches


class _Partition:
    """What is known of one partition's log: snapshots consumed and own batches acknowledged."""

    __slots__ = ("_marks", "consumed", "offsets", "open_events", "received_at_ms")

    def __init__(self) -> None:
        self.consumed = -1  # offset of the last snapshots record
        self._marks: list[tuple[int, int]] = []  # (as_of, own batches up to here are in); both rise
        self.offsets: dict[int, tuple[int, int | None]] = {}  # own batch -> telemetry offset, timestamp
        self.open_events: dict[int, int] = {}  # own batch -> events observed so far
        self.received_at_ms: float | None = None

    def included_seq(self, as_of: int) -> int:
        """Return up to which own batch a state of `as_of` includes all, as far as snapshots have said."""
        marks = self._marks
        if marks and marks[-1][0] <= as_of:
            return marks[-1][1]
        index = bisect_right(marks, as_of, key=lambda mark: mark[0])
        return marks[index - 1][1] if index else -1

    def note_included(self, as_of: int, seq: int) -> None:
        """Note that states of `as_of` and later include own batches up to `seq`."""
        if seq <= self.included_seq(as_of):
            return
        marks = self._marks
        index = len(marks)
        if marks and marks[-1][0] > as_of:
            index = bisect_right(marks, as_of, key=lambda mark: mark[0])
        end = index
        while end < len(marks) and marks[end][1] <= seq:
            end += 1
        marks[index:end] = [(as_of, seq)]
        if len(marks) > MARKS_MAX:
            del marks[0]


class _Own:
    """One own event on top of the snapshot."""

    __slots__ = ("at_ms", "event", "seq")

    def __init__(self, event: Event, seq: int, at_ms: int) -> None:
        self.event = event
        self.seq = seq
        self.at_ms = at_ms


class _Entry:
    """One instance: base, tail, and their fold."""

    __slots__ = (
        "base",
        "config",
        "folded",
        "folded_ms",
        "folded_seq",
        "included_seq",
        "loads",
        "no_share",
        "others",
        "own_share",
        "partition",
        "score",
        "snapshot",
        "snapshot_ms",
        "state",
        "state_of",
        "tail",
        "unfolded",
    )

    def __init__(self, instance: str, partition: int, config: ScoringConfig, log_ms: int) -> None:
        self.partition = partition
        self.config = config
        self.base = self.folded = fresh(instance, log_ms, config)
        # `folded` as of the last read. Events go onto `folded` itself: an estimate of log time that steps back a little
        # must not leave traces that no auditor could redo.
        self.state = self.folded
        self.state_of = self.folded
        self.score = score(self.state, config)
        self.snapshot: InstanceSnapshot | None = None
        self.snapshot_ms: int | None = None
        self.included_seq = -1  # own batches up to here are in the base
        self.folded_seq: int | None = None  # first own batch that the tail's bound pushed into the base
        self.folded_ms = 0  # when its first event was observed
        self.tail: deque[_Own] = deque()
        self.unfolded = 0  # newest events of the tail that are not in `folded` yet: that waits for a reader
        self.loads: deque[_Own] = deque(maxlen=64)  # own reports
        self.own_share = self.no_share = RouterLoad(instance=instance)  # the own report in the snapshot's sums
        self.others = NOBODY  # what the snapshot's sums leave without it

    def advance(self, now_ms: int) -> None:
        """Bring state and score to the tick of `now_ms`, which may lie before that of the last read."""
        if self.unfolded:
            self.fold_tail()
        tick, folded = now_ms // TICK_MS, self.folded
        same = self.state_of is folded
        if same and self.state.tick == (tick if tick > folded.tick else folded.tick):
            return
        onwards = self.state if same and self.state.tick < tick else folded
        self.state_of = folded
        if onwards.tick < tick:
            self.state = at(onwards, now_ms, self.config)
            self.score = self.state.damped  # a state that time has moved is not above its raw score
        else:
            self.state = onwards
            self.score = score(onwards, self.config)

    def pending_ms(self) -> int | None:
        """Return when the oldest own event was observed that the snapshot does not include."""
        if self.folded_seq is not None:
            return self.folded_ms
        return self.tail[0].at_ms if self.tail else None

    def includes(self, seq: int, known: "_Partition") -> bool:
        """Tell whether the base includes own batch `seq`."""
        if seq <= self.included_seq:
            return True
        place = known.offsets.get(seq)
        return place is not None and place[0] <= self.base.as_of

    def add(self, own: _Own) -> None:
        """Put one more own event on top."""
        self.tail.append(own)
        self.unfolded += 1

    def find_own_share(self, known: "_Partition") -> None:
        """Find the newest own report that the base includes; called when the base or what it includes has changed."""
        self._find_own_share(known)
        snapshot, own = self.snapshot, self.own_share
        if snapshot is None or not snapshot.replicas:
            self.others = NOBODY
            return
        self.others = (
            _excess(snapshot.in_flight, own.in_flight),
            _excess(snapshot.awaiting, own.awaiting),
            _excess(snapshot.in_flight_tokens, own.in_flight_tokens),
            _excess(snapshot.awaiting_tokens, own.awaiting_tokens),
        )

    def _find_own_share(self, known: "_Partition") -> None:
        loads = self.loads
        self.own_share = self.no_share
        while loads and self.includes(loads[0].seq, known):
            if len(loads) == 1 or not self.includes(loads[1].seq, known):
                self.own_share = self._if_valid(loads[0], known)
                break
            loads.popleft()

    def _if_valid(self, own: _Own, known: "_Partition") -> RouterLoad:
        """Return an own report if the snapshot's sums have it: they leave out what has expired by then."""
        event, snapshot = own.event, self.snapshot
        assert isinstance(event, RouterLoad)
        if snapshot is None or event.gen != snapshot.state.generation:
            return self.no_share
        _, timestamp_ms = known.offsets.get(own.seq, (0, None))
        told_ms = own.at_ms if timestamp_ms is None else timestamp_ms
        valid = snapshot.state.tick * TICK_MS - told_ms < self.config.load_expire_ms
        return event if valid else self.no_share

    def reconfigure(self, config: ScoringConfig) -> None:
        """Fold the tail anew, by other constants; what the base was folded by, its scorer decided."""
        self.config = config
        self.refold()
        self.state = self.state_of = self.base
        self.score = score(self.base, config)

    def refold(self) -> None:
        """Begin anew from base and tail."""
        self.folded = self.base
        self.unfolded = len(self.tail)

    def fold_tail(self) -> None:
        """Bring the folded state up to the newest own event."""
        tail = self.tail
        count = len(tail)
        # From its end: a step from the other would pass thousands of events for each new one while Kafka is away.
        newest = tail if self.unfolded == count else [tail[index] for index in range(count - self.unfolded, count)]
        self.folded = apply_all(self.folded, newest, self.config)
        self.unfolded = 0


class FleetView:
    """What one router believes of each instance.

    Args:
        configs: scoring config by instance id; these are the instances that the view follows.
        partitions: telemetry partition by instance id.
        incarnation: the router's, as in its telemetry batches.
        log_ms: first estimate of log time.
    """

    def __init__(
        self, configs: Mapping[str, ScoringConfig], partitions: Mapping[str, int], incarnation: int, log_ms: int
    ) -> None:
        self._incarnation = incarnation
        self._entries = {name: _Entry(name, partitions[name], config, log_ms) for name, config in configs.items()}
        self._partitions = {number: _Partition() for number in sorted(set(partitions.values()))}
        self._used: dict[tuple[str, ...], list[tuple[int, _Partition]]] = {}  # by a pool's instances
        self.folded_into_base = 0  # own events that hit the tail's bound
        self.older_snapshots = 0  # snapshots that were older than what the view had

    def follow(self, configs: Mapping[str, ScoringConfig], partitions: Mapping[str, int], log_ms: int) -> None:
        """Follow these instances from now on; others stay until they are forgotten.

        Args:
            configs: scoring config by instance id; of one that is known it may have changed.
            partitions: telemetry partition by instance id.
            log_ms: estimate of log time.
        """
        self._used.clear()
        for name, config in configs.items():
            entry = self._entries.get(name)
            if entry is None:
                self._partitions.setdefault(partitions[name], _Partition())
                self._entries[name] = _Entry(name, partitions[name], config, log_ms)
            elif entry.config != config:
                entry.reconfigure(config)

    def forget(self, instance: str) -> None:
        """Follow an instance no longer; nothing of it may be observed or read any more."""
        partition = self._entries.pop(instance).partition
        if not any(entry.partition == partition for entry in self._entries.values()):
            del self._partitions[partition]
            self._used.clear()

    def observe(self, event: Event, seq: int, at_ms: int) -> None:
        """Add an own event, which is part of own batch `seq` of its instance's partition."""
        entry = self._entries[event.instance]
        batches = self._partitions[entry.partition].open_events
        batches[seq] = batches.get(seq, 0) + 1
        if len(batches) > OFFSETS_MAX:
            del batches[next(iter(batches))]
        own = _Own(event, seq, at_ms)
        if isinstance(event, RouterLoad):
            entry.loads.append(own)
            return
        entry.add(own)
        if len(entry.tail) > TAIL_EVENTS_MAX or at_ms - entry.tail[0].at_ms > TAIL_AGE_MS_MAX:
            self._bound(entry, at_ms)

    def acknowledge(self, partition: int, seq: int, offset: int, timestamp_ms: int | None = None) -> None:
        """Note the offset that an own batch got; events that a snapshot turns out to include leave the tail.

        Args:
            partition: of telemetry.
            seq: of the batch.
            offset: of its record.
            timestamp_ms: of its record, if Kafka said it; tells when the loads in it expire.
        """
        known = self._partitions.get(partition)
        if known is None:
            return
        known.offsets[seq] = (offset, timestamp_ms if timestamp_ms != -1 else None)
        if len(known.offsets) > OFFSETS_MAX:
            del known.offsets[next(iter(known.offsets))]
        for entry in self._entries.values():
            if entry.partition == partition and entry.base.as_of >= offset and seq > entry.included_seq:
                self._drop_included(entry, known)
                entry.refold()
                entry.find_own_share(known)

    def take(self, offset: int, batch: SnapshotBatch, mono_ms: float) -> None:
        """Take in the snapshots record at `offset` of its partition."""
        known = self._partitions.get(batch.partition)
        if known is None:
            return
        known.consumed, known.received_at_ms = offset, mono_ms
        known.note_included(batch.as_of, batch.sequences.get(self._incarnation, -1))
        for snapshot in batch.snapshots:
            entry = self._entries.get(snapshot.state.instance)
            if entry is not None:
                self._rebase(entry, known, snapshot, batch)

    def _rebase(self, entry: _Entry, known: _Partition, snapshot: InstanceSnapshot, batch: SnapshotBatch) -> None:
        if (batch.as_of, batch.now_ms) < (entry.base.as_of, entry.snapshot_ms or 0):
            self.older_snapshots += 1
            return
        entry.snapshot, entry.snapshot_ms = snapshot, batch.now_ms
        entry.included_seq = max(entry.included_seq, known.included_seq(batch.as_of))
        entry.folded_seq = None
        entry.base = _with_offset(snapshot.state, batch.as_of)
        self._drop_included(entry, known)
        entry.refold()
        entry.find_own_share(known)

    def _drop_included(self, entry: _Entry, known: _Partition) -> None:
        if not entry.tail:
            return
        left = [own for own in entry.tail if own.seq > entry.included_seq]
        if known.offsets:
            left = [own for own in left if not entry.includes(own.seq, known)]
        entry.tail = deque(left)

    def _bound(self, entry: _Entry, now_ms: int) -> None:
        tail = entry.tail
        entry.fold_tail()
        while tail and (len(tail) > TAIL_EVENTS_MAX or now_ms - tail[0].at_ms > TAIL_AGE_MS_MAX):
            own = tail.popleft()
            entry.base = apply(entry.base, own.event, own.at_ms, entry.config)
            if entry.folded_seq is None:
                entry.folded_seq, entry.folded_ms = own.seq, own.at_ms
            self.folded_into_base += 1

    def read(self, instance: str, counts: Counts, now_ms: int) -> InstanceView:
        """Return the instance as it is believed to be at `now_ms`, with the given own load."""
        entry = self._entries[instance]
        entry.advance(now_ms)
        valid = now_ms - (entry.snapshot_ms or 0) < entry.config.load_expire_ms
        others_in_flight, others_awaiting, others_in_flight_tokens, others_awaiting_tokens = (
            entry.others if valid else NOBODY
        )
        return InstanceView(
            instance=instance,
            state=entry.state,
            config=entry.config,
            score=entry.score,
            in_flight=counts.in_flight,
            awaiting=counts.awaiting,
            in_flight_tokens=counts.in_flight_tokens,
            awaiting_tokens=counts.awaiting_tokens,
            others_in_flight=others_in_flight,
            others_awaiting=others_awaiting,
            others_in_flight_tokens=others_in_flight_tokens,
            others_awaiting_tokens=others_awaiting_tokens,
            snapshot_ms=entry.snapshot_ms,
            pending_ms=entry.pending_ms(),
        )

    def settle(self, instance: str, now_ms: int) -> None:
        """Fold now what the next look at an instance would have to fold; of no effect where nothing waits."""
        entry = self._entries.get(instance)
        if entry is not None and entry.unfolded:
            entry.advance(now_ms)

    def snapshot(self, instance: str) -> InstanceSnapshot | None:
        """Return the newest snapshot of the instance, if any came yet."""
        return self._entries[instance].snapshot

    def tail_events(self, instance: str) -> int:
        """Return how many own events lie on top of the instance's snapshot."""
        return len(self._entries[instance].tail)

    def generation(self, instance: str) -> int:
        """Return the generation of the instance in the view."""
        entry = self._entries[instance]
        if entry.unfolded:
            entry.fold_tail()
        return entry.folded.generation

    def offsets(self, instances: tuple[str, ...]) -> dict[int, int]:
        """Return the snapshots offset consumed, per partition of the given instances."""
        used = self._used.get(instances)
        if used is None:
            numbers = sorted({self._entries[name].partition for name in instances})
            used = self._used[instances] = [(number, self._partitions[number]) for number in numbers]
        return {number: partition.consumed for number, partition in used}

    def tails(self, instances: tuple[str, ...]) -> list[Tail]:
        """Return which own batches lie on top, per partition of the given instances."""
        bounds: dict[int, tuple[int, int]] = {}
        entries = self._entries
        for name in instances:
            entry = entries[name]
            tail = entry.tail
            if tail:
                first = tail[0].seq if entry.folded_seq is None else entry.folded_seq
                last = tail[-1].seq
                known = bounds.get(entry.partition)
                if known is not None:
                    first = known[0] if known[0] < first else first
                    last = known[1] if known[1] > last else last
                bounds[entry.partition] = (first, last)
        return [
            Tail(partition=number, first=low, last=high, last_events=self._partitions[number].open_events.get(high, 0))
            for number, (low, high) in sorted(bounds.items())
        ]

    def stale_ms(self, mono_ms: float) -> float | None:
        """Return the age of the stalest partition's newest snapshot; None when one has had none."""
        oldest = 0.0
        for known in self._partitions.values():
            if known.received_at_ms is None:
                return None
            oldest = max(oldest, mono_ms - known.received_at_ms)
        return oldest


def _excess(all_of_them: int, own: int) -> int:
    return all_of_them - own if all_of_them > own else 0


def _with_offset(state: InstanceState, as_of: int) -> InstanceState:
    if state.as_of == as_of:
        return state
    new: InstanceState = state.__copy__()  # type: ignore[attr-defined]  # msgspec's shallow copy
    new.as_of = as_of
    return new
