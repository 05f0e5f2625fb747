"""What the changelog says at a start: the newest state per instance, and from which telemetry offset to go on.

Every state record carries in a header `through`: all telemetry up to that offset is in it as far as it concerns the
instance. One living owner writes `through` in rising order. A worker that was stopped, lost its partitions and went on
(a zombie) may write an older record after newer ones, and compaction may then remove the newer one. So:

- per instance the highest `as_of` wins, whatever the order of writing; equal `as_of` means equal state;
- a record whose `through` is lower than that of one before it is a suspect, until a later one clears its instance;
- so is one that was written when a later owner had begun, though compaction has left none before it with a higher
  `through`: its header `since` says where the changelog ended when its writer took over; compaction keeps offsets;
- the partition goes on at min(committed, highest through + 1, lowest through of a suspect + 1). States skip what they
  include, so reading too much costs time only.

Two owners of which the first had written nothing when the second took over have the same `since`; only the order of
`through` tells them apart. Without `through`, min(as_of + 1) would be the only safe start, and one idle instance would
mean to read days again.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from evenload.schemas import InstanceState, WireError, decode_state


@dataclass(slots=True)
class _Kept:
    as_of: int
    log_ms: int
    data: bytes
    through: int
    since: int
    offset: int


@dataclass(slots=True)
class Recovered:
    """The changelog of one partition, read so far.

    Attributes:
        through: highest offset that any record vouches for, -1 before any.
        end: offset of the changelog after the last record read; the next owner's `since`.
        unreadable: records that could not be decoded; their instances start afresh.
        overtaken: records that were ignored because a newer state had been read already.
    """

    through: int = -1
    end: int = 0
    unreadable: int = 0
    overtaken: int = 0
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _outrun: dict[str, int] = field(default_factory=dict)  # instances whose newest record is older than one before it
    _owners: set[int] = field(default_factory=set)  # `since` of each

    def add(
        self,
        instance: str,
        data: bytes | None,
        through: int | None,
        since: int | None = None,
        offset: int | None = None,
    ) -> None:
        """Take in the next record of the changelog.

        Args:
            instance: its key.
            data: encoded state; None is a tombstone.
            through: its header; None is not known.
            since: its header; None is not known.
            offset: of the record; the one after the last if not given.
        """
        offset = self.end if offset is None else offset
        self.end = max(self.end, offset + 1)
        since = 0 if since is None else since
        self._owners.add(since)
        if data is None:
            self._bury(instance)
            self.through = max(self.through, -1 if through is None else through)
            return
        try:
            state = decode_state(data)
        except WireError:
            self.unreadable += 1
            return
        through = state.as_of if through is None else through
        record = _Kept(state.as_of, state.log_ms, data, through, since, offset)
        self._keep(instance, record)
        self.through = max(self.through, record.through)

    @property
    def suspects(self) -> dict[str, int]:
        """Instances whose newest record may have replaced a newer one, with what it vouches for."""
        owners = sorted(self._owners)
        late = {name: kept.through for name, kept in self._kept.items() if _is_late(kept, owners)}
        return late | self._outrun

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
            self._outrun[instance] = record.through
        else:
            self._outrun.pop(instance, None)
        self._kept[instance] = record

    def _bury(self, instance: str) -> None:
        """Drop an instance that left. A zombie's tombstone for one that came back meanwhile changes nothing."""
        old = self._kept.get(instance)
        if old is not None and decode_state(old.data).left_ms is None:
            self.overtaken += 1
            return
        self._kept.pop(instance, None)
        self._outrun.pop(instance, None)


def _is_late(kept: _Kept, owners: list[int]) -> bool:
    """Tell whether a later owner had begun when a record was written; `owners` are all `since`, in order."""
    begun = bisect_right(owners, kept.offset)
    return begun > 0 and owners[begun - 1] > kept.since
