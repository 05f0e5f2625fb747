"""Tells a worker that hangs from one that waits for Kafka, and from one that is only busy.

A partition hangs when Kafka says that there are records to read and none was applied for 15 s. While other partitions
get on it is given 60 s, because a worker with a backlog and too little CPU works partitions off in turns. While Kafka
does not answer, nothing can be said of partitions; but if it answers another client, and the worker's own goes without
answers for 30 s, that one hangs. A worker that gets no partitions hangs when nothing at all happened for 30 s. One that
has them and reads states hangs when none came for 10 s: now and then, after a rebalance under load, Faust's fetches
simply do not start.
"""

from collections.abc import Mapping

PARTITION_MS = 15_000.0
TURN_MS = 60_000.0
WORKER_MS = 30_000.0
READING_MS = 10_000.0


class Watchdog:
    """Remembers when each partition, and the worker, last got on."""

    def __init__(self, now_ms: float, partition_ms: float = PARTITION_MS, worker_ms: float = WORKER_MS) -> None:
        self._partition_ms = partition_ms
        self._worker_ms = worker_ms
        self._positions: dict[int, tuple[int, float]] = {}
        self._moved_ms = now_ms
        self._signs_of_life: int | None = None
        self._alive_ms = now_ms

    def look(
        self,
        now_ms: float,
        *,
        reachable: bool,
        behind: Mapping[int, int] | None,
        positions: Mapping[int, int],
        recovered: bool,
        signs_of_life: int,
        reading: bool = False,
    ) -> str | None:
        """Return why the worker should end, or None.

        Args:
            now_ms: monotonic.
            reachable: Kafka answers a client made for this question.
            behind: records that can be read and were not applied, per assigned partition; None when Kafka did not say.
            positions: last offset applied per assigned partition.
            recovered: the worker has finished recovering after the last rebalance.
            signs_of_life: counts rebalances and recovered records; any change is progress.
            reading: it has partitions and reads their states.
        """
        getting_on = behind is not None if recovered else signs_of_life != self._signs_of_life
        if getting_on or not reachable:
            self._alive_ms = now_ms
        self._signs_of_life = signs_of_life
        if now_ms - self._alive_ms >= (READING_MS if reading and not recovered else self._worker_ms):
            event = "an answer of Kafka" if recovered else "the end of recovery"
            return f"the worker has waited for {event} for {(now_ms - self._alive_ms) / 1000:.0f} s"
        return self._stuck_partition(now_ms, behind, positions)

    def standing(self, now_ms: float, for_ms: float) -> list[int]:
        """Return the partitions that were behind and stood still for `for_ms` at the last look."""
        return [partition for partition, (_, since_ms) in self._positions.items() if now_ms - since_ms >= for_ms]

    def _stuck_partition(
        self, now_ms: float, behind: Mapping[int, int] | None, positions: Mapping[int, int]
    ) -> str | None:
        for gone in self._positions.keys() - positions.keys():
            del self._positions[gone]
        for partition, position in positions.items():
            last, _ = self._positions.get(partition, (None, now_ms))
            if last != position:
                self._moved_ms = now_ms
            if last != position or behind is None or behind.get(partition, 0) <= 0:
                self._positions[partition] = (position, now_ms)
        for partition, (_, since_ms) in self._positions.items():
            still_ms = now_ms - since_ms
            alone = now_ms - self._moved_ms < self._partition_ms
            if behind is not None and still_ms >= (TURN_MS if alone else self._partition_ms):
                records = behind.get(partition, 0)
                return (
                    f"partition {partition} is {records} records behind and has stood still for {still_ms / 1000:.0f} s"
                )
        return None
