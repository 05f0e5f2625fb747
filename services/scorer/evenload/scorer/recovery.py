"""What the changelog says at a start: the newest state per instance, and from which telemetry offset to go on.

Every state record carries in a header `through`: all telemetry up to that offset is in it as far as it concerns the
instance. One living owner writes `through` in rising order. A worker that was stopped, lost its partitions and went on
(a zombie) may write an older record after newer ones, and compaction may then remove the newer one. So:

- per instance the highest `as_of` wins, whatever the order of writing; equal `as_of` means equal state;
- a record whose `through` is lower than that of one before it is a suspect, until a later one clears its instance;
- the partition goes on at min(committed, highest through + 1, lowest through of a suspect + 1). States skip what they
  include, so reading too much costs time only.

Without `through`, min(as_of + 1) would be the only safe start, and one idle instance would mean to read days again.
"""

from dataclasses import dataclass, field

from evenload.schemas import InstanceState, WireError, decode_state


@dataclass(slots=True)
class _Kept:
    as_of: int
    log_ms: int
    data: bytes
    through: int


@dataclass(slots=True)
class Recovered:
    """The changelog of one partition, read so far.

    Attributes:
        through: highest offset that any record vouches for, -1 before any.
        suspects: instances whose newest record is older than one before it, with what it vouches for.
        unreadable: records that could not be decoded; their instances start afresh.
        overtaken: records that were ignored because a newer state had been read already.
    """

    through: int = -1
    suspects: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0
    overtaken: int = 0
    _kept: dict[str, _Kept] = field(default_factory=dict)

    def add(self, instance: str, data: bytes | None, through: int | None) -> None:
        """Take in the next record of the changelog; `data` None is a tombstone, `through` None is not known."""
        if data is None:
            self._bury(instance)
            self.through = max(self.through, -1 if through is None else through)
            return
        try:
            state = decode_state(data)
        except WireError:
            self.unreadable += 1
            return
        record = _Kept(state.as_of, state.log_ms, data, state.as_of if through is None else through)
        self._keep(instance, record)
        self.through = max(self.through, record.through)

    def resume(self, committed: int | None) -> int | None:
        """Return the telemetry offset to go on at; None for the beginning of the log."""
        if committed is None:
            return None
        return min(committed, self.through + 1, *(through + 1 for through in self.suspects.values()))

    def states(self) -> dict[str, InstanceState]:
        """Decode the newest state of every instance."""
        return {instance: decode_state(kept.data) for instance, kept in self._kept.items()}

    def _keep(self, instance: str, record: _Kept) -> None:
        old = self._kept.get(instance)
        if old is not None and (old.as_of, old.log_ms, old.through) > (record.as_of, record.log_ms, record.through):
            self.overtaken += 1
            return
        if record.through < self.through:
            self.suspects[instance] = record.through
        else:
            self.suspects.pop(instance, None)
        self._kept[instance] = record

    def _bury(self, instance: str) -> None:
        """Drop an instance that left. A zombie's tombstone for one that came back meanwhile changes nothing."""
        old = self._kept.get(instance)
        if old is not None and decode_state(old.data).left_ms is None:
            self.overtaken += 1
            return
        self._kept.pop(instance, None)
        self.suspects.pop(instance, None)
