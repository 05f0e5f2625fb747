"""Every published snapshot, recomputed from the telemetry before it: bit for bit.

The fold of one partition runs once over its log; at each snapshots record it stops where that record says it was taken
(`as_of`, `now_ms`) and compares the encoded bytes.
"""

from collections.abc import Callable, Iterable, Iterator

from evenload.audit.findings import Finding
from evenload.schemas import Batch, InstanceSnapshot, InstanceState, SnapshotBatch, WireError, decode_batch, encode
from evenload.scoring import ScoringConfig, digest, fold, snapshot

ConfigOf = Callable[[str], ScoringConfig]
Telemetry = Iterable[tuple[int, int, bytes]]  # offset, timestamp, value; in order
Published = list[tuple[int, SnapshotBatch]]  # offset, record


class PartitionAudit:
    """Replays one partition.

    Args:
        in_scope: tells by log time whether a snapshot is to be checked.
        instance: check only this one's snapshots.

    Attributes:
        gaps: what is missing from its log.
        events: telemetry events replayed.
    """

    def __init__(
        self,
        partition: int,
        config_of: ConfigOf,
        in_scope: Callable[[int], bool] = lambda _: True,
        instance: str | None = None,
    ) -> None:
        self._partition = partition
        self._config_of = config_of
        self._in_scope = in_scope
        self._instance = instance
        self._states: dict[str, InstanceState] = {}
        self._whole = True
        self.gaps: list[str] = []
        self.events = 0

    def findings(self, telemetry: Telemetry, published: Published) -> Iterator[Finding]:
        """Yield one finding per snapshot, in the order in which they were taken."""
        waiting = sorted(
            (item for item in published if self._in_scope(item[1].now_ms)),
            key=lambda item: (item[1].as_of, item[1].now_ms, item[0]),
            reverse=True,
        )
        expected = 0
        for offset, timestamp_ms, value in telemetry:
            while waiting and waiting[-1][1].as_of < offset:
                yield from self._check(*waiting.pop(), last=expected - 1)
            self._note_gap(expected, offset)
            expected = offset + 1
            self._apply(offset, timestamp_ms, value)
        while waiting:
            yield from self._check(*waiting.pop(), last=expected - 1)

    def _note_gap(self, expected: int, offset: int) -> None:
        if offset == expected:
            return
        if expected == 0:
            self._whole = False  # retention: what lies before can no longer be replayed
        else:
            self.gaps.append(f"telemetry partition {self._partition}: offsets {expected} to {offset - 1} are missing")

    def _apply(self, offset: int, timestamp_ms: int, value: bytes) -> None:
        try:
            batch: Batch = decode_batch(value)
        except WireError:
            return  # the scorer put it aside as a dead letter, so no state contains it
        self.events += len(batch.events)
        self._states.update(fold(self._states, batch, offset, timestamp_ms, self._config_of))

    def _check(self, offset: int, record: SnapshotBatch, *, last: int) -> Iterator[Finding]:
        for recorded in record.snapshots:
            name = recorded.state.instance
            if self._instance not in (None, name):
                continue
            where = (
                f"snapshots partition {self._partition} offset {offset}, {name} as of telemetry offset {record.as_of}"
            )
            if not self._whole:
                yield Finding("unverifiable", "snapshot", where, "telemetry before it has expired")
            elif self.gaps:
                yield Finding("unverifiable", "snapshot", where, "telemetry before it is missing")
            elif record.as_of > last:
                yield Finding("unverifiable", "snapshot", where, "it is newer than the telemetry that was read")
            else:
                yield self._compare(where, recorded, record.now_ms)

    def _compare(self, where: str, recorded: InstanceSnapshot, now_ms: int) -> Finding:
        name = recorded.state.instance
        config = self._config_of(name)
        here = digest(config)
        if here != recorded.digest:
            return Finding("different", "snapshot", where, "the scoring config differs", recorded.digest, here)
        state = self._states.get(name)
        if state is None:
            return Finding("different", "snapshot", where, "no telemetry names this instance", "a snapshot", "nothing")
        again = snapshot(state, now_ms, config)
        if encode(again) == encode(recorded):
            return Finding("verified", "snapshot", where)
        field, was, now = first_difference(recorded, again)
        return Finding("different", "snapshot", where, f"{field} differs", was, now)


def first_difference(recorded: InstanceSnapshot, again: InstanceSnapshot) -> tuple[str, str, str]:
    """Return the first field in which two snapshots differ, and both values."""
    for field in InstanceSnapshot.__struct_fields__:
        was, now = getattr(recorded, field), getattr(again, field)
        if field == "state":
            for inner in InstanceState.__struct_fields__:
                if getattr(was, inner) != getattr(now, inner):
                    return f"state.{inner}", repr(getattr(was, inner)), repr(getattr(now, inner))
        elif was != now:
            return field, repr(was), repr(now)
    return "encoding", encode(recorded).hex(), encode(again).hex()
