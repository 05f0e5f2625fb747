"""Who belongs to the fleet, told to the log: by the collector that polls the instance, so that one speaks and not all.

`evenload.discovery.members` says what there is to say; here it is decided when the log has been heard for long enough
to know that it does not know an instance. A drain that an operator asked for lives in the log, so whoever starts
listens first.
"""

from collections.abc import Callable, Mapping

from evenload.bus.topics import partition_for
from evenload.discovery.members import Members
from evenload.schemas import Event, InstanceState, SnapshotBatch
from evenload.settings import Settings

HEARD_MS = 3_000.0  # every instance is spoken of every 2 s
SILENT_MS = 30_000.0  # a partition of which nothing comes for so long, while others speak, has nobody in it


class Standing:
    """The members, and what is told of them.

    Args:
        partitions: of telemetry.
        leave_ms_max: how long a drain may take.
        owns: whether it is for this collector to speak of an instance, now.
        emit: takes events.
    """

    def __init__(
        self, partitions: int, leave_ms_max: float, owns: Callable[[str], bool], emit: Callable[[Event], object]
    ) -> None:
        self._members = Members(leave_ms_max)
        self._partitions = partitions
        self._owns = owns
        self._emit = emit
        self._heard_ms: dict[int, float] = {}  # when the first snapshots of a partition came

    def want(self, settings: Settings, marks: Mapping[str, str], now_ms: float) -> tuple[str, ...]:
        """Take the settings as they are now; returns the ids of instances that are new or something else."""
        wanted = {
            one.id: f"{one.url} {marks.get(one.id, '')}".rstrip() for pool in settings.pools for one in pool.instances
        }
        found = self._members.want(wanted, now_ms)
        for name in (*found.joined, *found.left, *found.replaced):
            self._tell(name, now_ms, heard=self._heard(name, now_ms))
        return found.joined + found.replaced

    def generation(self, instance: str) -> int:
        """Return the generation of which events are to be told."""
        return self._members.generation(instance)

    def is_current(self, state: InstanceState) -> bool:
        """Tell whether a state is of the instance as it is now."""
        return state.left_ms is None and state.generation == self.generation(state.instance)

    def on_batch(self, batch: SnapshotBatch, now_ms: float) -> None:
        """Take what the scorer believes."""
        self._heard_ms.setdefault(batch.partition, now_ms)
        for item in batch.snapshots:
            if self._members.on_snapshot(item, batch.now_ms, now_ms):
                self._tell(item.state.instance, now_ms, heard=True)

    def tick(self, now_ms: float) -> None:
        """Tell what is due without a snapshot; call it once a second or so."""
        for name in self._members.unsettled():
            self._tell(name, now_ms, heard=self._heard(name, now_ms))
        self._members.prune(now_ms)

    def _tell(self, name: str, now_ms: float, *, heard: bool) -> None:
        if self._owns(name):
            event = self._members.due(name, now_ms, heard=heard)
            if event is not None:
                self._emit(event)

    def _heard(self, name: str, now_ms: float) -> bool:
        own_ms = self._heard_ms.get(partition_for(name.encode(), self._partitions))
        first_ms = min(self._heard_ms.values(), default=now_ms)
        return (own_ms is not None and now_ms - own_ms >= HEARD_MS) or now_ms - first_ms >= SILENT_MS
