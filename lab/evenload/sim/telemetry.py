"""The way from routers to the scorer and back, in virtual time. The fold and the snapshots are the production code.

What is left out: encoding, Kafka, checkpoints, acknowledgements (a snapshot's `sequences` say what it includes, which
is how a router learns it too), and the linger advice. A record's log time is the moment the scorer reads it.
"""

from collections.abc import Callable
from random import Random
from typing import Protocol

from evenload.schemas import Batch, Event, InstanceState, SnapshotBatch
from evenload.scoring import ScoringConfig, fold, snapshot
from evenload.sim.scenario import TelemetryPath
from evenload.sim.timeline import LogNormal, Timeline

LOG_START_MS = 1_000_000_000  # log time of virtual time 0


class Subscriber(Protocol):
    """A router, as the path sees it."""

    def take(self, offset: int, batch: SnapshotBatch) -> None:
        """Take in a snapshots record."""
        ...


class Lane:
    """What one producer has under way for one partition; the production lane's rules without its bytes."""

    __slots__ = ("_path", "closes_ms", "events", "incarnation", "last_ms", "log", "opened_ms", "seq")

    def __init__(self, path: "Path", log: "PartitionLog", incarnation: int) -> None:
        self._path = path
        self.log = log
        self.incarnation = incarnation
        self.seq = -1
        self.events: list[Event] = []
        self.opened_ms = self.closes_ms = self.last_ms = -1.0

    def add(self, event: Event) -> int:
        """Put an event into the open batch; return the batch's sequence."""
        path = self._path
        now_ms = path.timeline.now_ms
        if now_ms >= self.closes_ms:
            self.seq += 1
            self.events = []
            self.opened_ms, self.closes_ms = now_ms, now_ms + path.spec.linger_ms
            arrival_ms = path.passes_ms(self.closes_ms + path.event_delay.draw_ms())
            self.last_ms = max(self.last_ms, arrival_ms)  # a producer's batches keep their order
            path.timeline.at(self.last_ms, self._deliver, (self.seq, self.events, now_ms))
        self.events.append(event)
        return self.seq

    def _deliver(self, sent: tuple[int, list[Event], float]) -> None:
        seq, events, opened_ms = sent
        path = self._path
        batch = Batch(
            v=1,
            producer="p",
            incarnation=self.incarnation,
            seq=seq,
            events=events,
            age_ms=path.timeline.now_ms - opened_ms,
        )
        self.log.append(batch)
        if path.spec.duplicate_share and path.rng.random() < path.spec.duplicate_share:
            self.log.append(batch)


class PartitionLog:
    """One telemetry partition and the scorer of it."""

    def __init__(self, path: "Path", partition: int, skew_ms: float, config_of: Callable[[str], ScoringConfig]) -> None:
        self._path = path
        self._partition = partition
        self._skew_ms = LOG_START_MS + skew_ms
        self._config_of = config_of
        self._offset = -1
        self._snapshots_offset = -1
        self._log_ms = int(self._skew_ms)
        self.states: dict[str, InstanceState] = {}
        self._touched: set[str] = set()
        self._published_ms: dict[str, float] = {}
        self._heard: dict[int, int] = {}
        self._last_ms: dict[int, float] = {}
        self._flush_due = False

    def append(self, batch: Batch) -> None:
        """Fold a record in and see to it that routers hear of it."""
        now_ms = self._path.timeline.now_ms
        self._offset += 1
        log_ms = int(now_ms + self._skew_ms)
        self._log_ms = max(self._log_ms, log_ms)
        changed = fold(self.states, batch, self._offset, self._log_ms, self._config_of)
        self.states.update(changed)
        self._touched.update(changed)
        if self._heard.get(batch.incarnation, -1) < batch.seq:
            self._heard[batch.incarnation] = batch.seq
        if not self._flush_due:
            self._ask_flush()

    def _ask_flush(self) -> None:
        if not self._flush_due and self._touched:
            spec = self._path.spec
            due_ms = min(self._published_ms.get(name, -spec.flush_ms) for name in self._touched) + spec.flush_ms
            self._flush_due = True
            # The scorer's timer ticks ten times per flush interval.
            self._path.timeline.at(max(due_ms, self._path.timeline.now_ms + spec.flush_ms / 10), self._flush)

    def _flush(self, _: object) -> None:
        self._flush_due = False
        spec = self._path.spec
        mono_ms = self._path.timeline.now_ms
        due = sorted(
            name
            for name in self._touched
            if mono_ms - self._published_ms.get(name, -spec.flush_ms) >= spec.flush_ms - 1e-6
        )
        if due:
            self._touched.difference_update(due)
            self._publish(due, mono_ms)
        self._ask_flush()

    def heartbeat(self, _: object = None) -> None:
        """Publish what has been silent, again and again."""
        mono_ms = self._path.timeline.now_ms
        spec = self._path.spec
        silent = sorted(
            name for name in self.states if mono_ms - self._published_ms.get(name, 0.0) >= spec.heartbeat_ms / 2
        )
        if silent:
            self._touched.difference_update(silent)
            self._publish(silent, mono_ms)
        self._path.timeline.at(mono_ms + spec.heartbeat_ms / 4, self.heartbeat)

    def _publish(self, names: list[str], mono_ms: float) -> None:
        now_ms = max(self._log_ms, int(mono_ms + self._skew_ms))
        sequences, self._heard = self._heard, {}
        record = SnapshotBatch(
            v=1,
            partition=self._partition,
            as_of=self._offset,
            now_ms=now_ms,
            linger_ms=20,
            sequences=sequences,
            snapshots=[snapshot(self.states[name], now_ms, self._config_of(name)) for name in names],
        )
        for name in names:
            self._published_ms[name] = mono_ms
        self._snapshots_offset += 1
        offset = self._snapshots_offset
        path = self._path
        for number, router in enumerate(path.routers):
            arrival_ms = path.passes_ms(mono_ms + path.snapshot_delay.draw_ms())
            arrival_ms = self._last_ms[number] = max(self._last_ms.get(number, 0.0), arrival_ms)
            path.timeline.at(arrival_ms, _handed_over, (router, offset, record))


class Path:
    """All partitions, and who listens."""

    def __init__(
        self, timeline: Timeline, spec: TelemetryPath, config_of: Callable[[str], ScoringConfig], rng: Random
    ) -> None:
        self.timeline = timeline
        self.spec = spec
        self.rng = rng
        self.event_delay = LogNormal(spec.event_p50_ms, spec.event_p99_ms, rng)
        self.snapshot_delay = LogNormal(spec.snapshot_p50_ms, spec.snapshot_p99_ms, rng)
        self.routers: list[Subscriber] = []
        share = spec.skew_ms / max(1, spec.partitions - 1)
        self.logs = [PartitionLog(self, number, number * share, config_of) for number in range(spec.partitions)]
        for number, log in enumerate(self.logs):
            timeline.at(37.0 * number, log.heartbeat)

    def passes_ms(self, arrival_ms: float) -> float:
        """Return when something gets through that would arrive at `arrival_ms` without stalls."""
        for from_ms, until_ms in self.spec.stalls_ms:
            if from_ms <= arrival_ms < until_ms:
                return until_ms
        return arrival_ms


def _handed_over(record: tuple[Subscriber, int, SnapshotBatch]) -> None:
    router, offset, batch = record
    router.take(offset, batch)
