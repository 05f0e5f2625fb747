"""Reading the topics for an audit, and running it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from evenload.audit.decisions import DecisionAudit, SnapshotIndex
from evenload.audit.findings import Report
from evenload.audit.snapshots import PartitionAudit
from evenload.audit.story import Story, tell
from evenload.bus.access import cluster_of
from evenload.bus.log_reader import LogRecord, read_log
from evenload.bus.topics import describe_topics, partition_for, specs, topic_names
from evenload.schemas import Batch, Decision, SnapshotBatch, WireError, decode_batch, decode_decision, decode_snapshots
from evenload.settings import Settings
from evenload.settings.scoring import config_of

HINDSIGHT_MS = 60_000  # clocks of routers and brokers may differ by this much

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is being done, how much so far, of how much


@dataclass(frozen=True, slots=True)
class Scope:
    """What is to be checked; whatever lies before it is replayed all the same, because states build on it.

    Attributes:
        from_ms, to_ms: log time, from (included) to (excluded).
        instance: only this instance's snapshots, and decisions that had it as a candidate.
    """

    from_ms: int = 0
    to_ms: int = 2**63
    instance: str | None = None

    def has(self, at_ms: int) -> bool:
        """Tell whether a moment is in scope."""
        return self.from_ms <= at_ms < self.to_ms

    def has_decision(self, decision: Decision) -> bool:
        """Tell whether a decision is in scope."""
        named = self.instance is None or any(one.instance == self.instance for one in decision.candidates)
        return named and self.has(decision.now_ms)


@dataclass(slots=True)
class Log:
    """What an audit works on.

    Attributes:
        telemetry: per partition (offset, timestamp, value) in order.
        snapshots: per partition (offset, record) in order.
        own: batches that routers' views may refer to, by (incarnation, partition, seq); the first of equal ones.
    """

    telemetry: dict[int, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    snapshots: dict[int, list[tuple[int, SnapshotBatch]]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    own: dict[tuple[int, int, int], tuple[int, Batch]] = field(default_factory=dict)
    undecodable: dict[str, int] = field(default_factory=dict)


def verify(settings: Settings, scope: Scope, progress: Progress) -> Report:
    """Recompute every snapshot and every decision in scope.

    Raises:
        AccessRefused: Kafka does not let it in, or not read.
        BusUnavailable: Kafka did not answer.
        TopicMissing: a topic does not exist.
    """
    return check(asyncio.run(read(settings, scope, progress)), settings, scope, progress)


def check(log: Log, settings: Settings, scope: Scope, progress: Progress) -> Report:
    """Recompute every snapshot and every decision in scope of a log that has been read."""
    report = Report(undecodable=log.undecodable)
    config = config_of(settings)
    index = SnapshotIndex()
    for partition in sorted({*log.telemetry, *log.snapshots}):
        audit = PartitionAudit(partition, config, scope.has, scope.instance)
        telemetry = log.telemetry.get(partition, [])
        published = log.snapshots.get(partition, [])
        replayed = _counted(telemetry, f"replaying partition {partition}", progress)
        for finding in audit.findings(replayed, published):
            report.add(finding)
        report.gaps += audit.gaps
        report.telemetry_events += audit.events
        for offset, record in published:
            index.add(offset, record)
    decisions = DecisionAudit(
        index, log.own, config, lambda name: partition_for(name.encode(), settings.kafka.partitions)
    )
    for decision in _counted(log.decisions, "redoing decisions", progress):
        report.add(decisions.check(decision))
    return report


def explain(settings: Settings, request_id: str, progress: Progress) -> Story:
    """Return the story of one request.

    Raises:
        LookupError: no decision of it is in the log.
        BusUnavailable: Kafka did not answer.
    """
    scope = Scope()
    log = Log()
    asyncio.run(_read_decisions(settings, scope, log, progress))
    attempts = sorted((one for one in log.decisions if one.request_id == request_id), key=lambda one: one.attempt)
    if not attempts:
        raise LookupError(f"no decision of request {request_id!r} is in the log")
    log.decisions = attempts
    asyncio.run(_read_telemetry(settings, log, progress, from_ms=attempts[0].now_ms - HINDSIGHT_MS))
    return tell(attempts, log.own)


async def read(settings: Settings, scope: Scope, progress: Progress) -> Log:
    """Read everything that an audit works on.

    Raises:
        AccessRefused: Kafka does not let it in, or not read.
        BusUnavailable: Kafka did not answer.
        TopicMissing: a topic does not exist.
    """
    log = Log()
    # Decisions first: whatever they refer to is then in the log before its end is read.
    await _read_decisions(settings, scope, log, progress)
    await _read_snapshots(settings, log, progress)
    await _read_telemetry(settings, log, progress)
    return log


async def _read_decisions(settings: Settings, scope: Scope, log: Log, progress: Progress) -> None:
    topic = topic_names(settings.kafka.topic_prefix).decisions
    async for record in _records(settings, topic, progress):
        try:
            decision = decode_decision(record.value or b"")
        except WireError:
            log.undecodable[topic] = log.undecodable.get(topic, 0) + 1
            continue
        if scope.has_decision(decision):
            log.decisions.append(decision)


async def _read_snapshots(settings: Settings, log: Log, progress: Progress) -> None:
    topic = topic_names(settings.kafka.topic_prefix).snapshots
    async for record in _records(settings, topic, progress):
        try:
            batch = decode_snapshots(record.value or b"")
        except WireError:
            log.undecodable[topic] = log.undecodable.get(topic, 0) + 1
            continue
        log.snapshots.setdefault(record.partition, []).append((record.offset, batch))


async def _read_telemetry(settings: Settings, log: Log, progress: Progress, from_ms: int | None = None) -> None:
    routers = {decision.incarnation for decision in log.decisions}
    topic = topic_names(settings.kafka.topic_prefix).telemetry
    async for record in _records(settings, topic, progress, from_ms):
        value = record.value or b""
        log.telemetry.setdefault(record.partition, []).append((record.offset, record.timestamp_ms, value))
        try:
            batch = decode_batch(value)
        except WireError:
            log.undecodable[topic] = log.undecodable.get(topic, 0) + 1
            continue
        if batch.incarnation in routers:
            log.own.setdefault((batch.incarnation, record.partition, batch.seq), (record.offset, batch))


async def _records(
    settings: Settings, topic: str, progress: Progress, from_ms: int | None = None
) -> AsyncIterator[LogRecord]:
    kafka = settings.kafka
    wanted = [spec for spec in specs(kafka.topic_prefix, kafka.partitions, kafka.replication) if spec.name == topic]
    brokers = cluster_of(kafka, os.environ)
    described = await describe_topics(brokers, wanted)
    total, count = described[0].records, 0
    async for record in read_log(brokers, topic, first_ms=from_ms):
        count += 1
        progress(f"reading {topic}", count, max(total, count))
        yield record


def _counted(items: Sequence[T], what: str, progress: Progress) -> Iterator[T]:
    for count, item in enumerate(items, 1):
        progress(what, count, len(items))
        yield item
