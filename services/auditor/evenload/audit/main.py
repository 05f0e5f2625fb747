"""Reading the topics for an audit, and running it."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from evenload.audit.decisions import DecisionAudit, SnapshotIndex
from evenload.audit.findings import Report
from evenload.audit.snapshots import PartitionAudit
from evenload.audit.story import Story, tell
from evenload.bus.log_reader import read_log
from evenload.bus.topics import TopicNames, partition_for, topic_names
from evenload.schemas import Batch, Decision, SnapshotBatch, WireError, decode_batch, decode_decision, decode_snapshots
from evenload.settings import Settings
from evenload.settings.scoring import config_of

Progress = Callable[[str, int], None]  # what is being read, records so far


@dataclass(slots=True)
class Log:
    """What an audit works on.

    Attributes:
        telemetry: per partition (offset, timestamp, value) in order.
        snapshots: per partition (offset, record) in order.
        own: batches by (incarnation, partition, seq); the first of several equal ones.
        undecodable: records of the three topics that could not be read.
    """

    telemetry: dict[int, list[tuple[int, int, bytes]]] = field(default_factory=lambda: defaultdict(list))
    snapshots: dict[int, list[tuple[int, SnapshotBatch]]] = field(default_factory=lambda: defaultdict(list))
    decisions: list[Decision] = field(default_factory=list)
    own: dict[tuple[int, int, int], tuple[int, Batch]] = field(default_factory=dict)
    undecodable: int = 0


def verify(settings: Settings, progress: Progress) -> Report:
    """Recompute every snapshot and every decision that the topics still hold.

    Raises:
        BusUnavailable: Kafka did not answer.
        TopicMissing: a topic does not exist.
    """
    log = asyncio.run(_read(settings, progress))
    report = Report()
    config = config_of(settings)
    index = SnapshotIndex()
    for partition in sorted({*log.telemetry, *log.snapshots}):
        audit = PartitionAudit(partition, config)
        for finding in audit.findings(log.telemetry[partition], log.snapshots[partition]):
            report.add(finding)
        report.gaps += audit.gaps
        report.telemetry_events += audit.events
        for offset, record in log.snapshots[partition]:
            index.add(offset, record)
    decisions = DecisionAudit(
        index, log.own, config, lambda name: partition_for(name.encode(), settings.kafka.partitions)
    )
    for decision in log.decisions:
        report.add(decisions.check(decision))
    return report


def explain(settings: Settings, request_id: str, progress: Progress) -> Story:
    """Return the story of one request.

    Raises:
        LookupError: no decision of it is in the log.
        BusUnavailable: Kafka did not answer.
    """
    log = asyncio.run(_read(settings, progress, snapshots=False))
    attempts = sorted(
        (decision for decision in log.decisions if decision.request_id == request_id), key=lambda one: one.attempt
    )
    if not attempts:
        raise LookupError(f"no decision of request {request_id!r} is in the log")
    return tell(attempts, log.own)


async def _read(settings: Settings, progress: Progress, snapshots: bool = True) -> Log:
    names, log = topic_names(settings.kafka.topic_prefix), Log()
    # Decisions first: whatever they refer to is then in the log before its end is read.
    await _read_decisions(settings, names, log, progress)
    if snapshots:
        await _read_snapshots(settings, names, log, progress)
    await _read_telemetry(settings, names, log, progress)
    return log


async def _read_decisions(settings: Settings, names: TopicNames, log: Log, progress: Progress) -> None:
    count = 0
    async for record in read_log(settings.kafka.bootstrap, names.decisions):
        count += 1
        progress("decisions", count)
        try:
            log.decisions.append(decode_decision(record.value or b""))
        except WireError:
            log.undecodable += 1


async def _read_snapshots(settings: Settings, names: TopicNames, log: Log, progress: Progress) -> None:
    count = 0
    async for record in read_log(settings.kafka.bootstrap, names.snapshots):
        count += 1
        progress("snapshots", count)
        try:
            log.snapshots[record.partition].append((record.offset, decode_snapshots(record.value or b"")))
        except WireError:
            log.undecodable += 1


async def _read_telemetry(settings: Settings, names: TopicNames, log: Log, progress: Progress) -> None:
    count = 0
    async for record in read_log(settings.kafka.bootstrap, names.telemetry):
        count += 1
        progress("telemetry", count)
        value = record.value or b""
        log.telemetry[record.partition].append((record.offset, record.timestamp_ms, value))
        try:
            batch = decode_batch(value)
        except WireError:
            log.undecodable += 1
            continue
        log.own.setdefault((batch.incarnation, record.partition, batch.seq), (record.offset, batch))
