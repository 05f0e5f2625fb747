"""Tells a worker that hangs from one that waits for Kafka.

A partition hangs when Kafka says that there are records to read and none was applied for 15 s. While Kafka does not
answer, nothing can be said of partitions; but if its port takes connections and yet every question goes unanswered for
30 s, the worker's own client hangs. A worker that gets no partitions, or does not finish recovering, hangs when nothing
at all happened for 30 s.
"""

from collections.abc import Mapping

PARTITION_MS = 15_000.0
WORKER_MS = 30_000.0


class Watchdog:
    """Remembers when each partition, and the worker, last got on."""

    def __init__(self, now_ms: float, partition_ms: float = PARTITION_MS, worker_ms: float = WORKER_MS) -> None:
        self._partition_ms = partition_ms
        self._worker_ms = worker_ms
        self._positions: dict[int, tuple[int, float]] = {}
        self._signs_of_life: int | None = None
        self._alive_ms = now_ms

    def look(
        self,
        now_ms: float,
        *,
        reachable: bool,
        ends: Mapping[int, int] | None,
        positions: Mapping[int, int],
        recovered: bool,
        signs_of_life: int,
    ) -> str | None:
        """Return why the worker should end, or None.

        Args:
            now_ms: monotonic.
            reachable: Kafka's port takes connections.
            ends: next offset of each assigned partition as Kafka just said, None when it did not answer.
            positions: last offset applied per assigned partition.
            recovered: the worker has finished recovering after the last rebalance.
            signs_of_life: counts rebalances and recovered records; any change is progress.
        """
        answered = ends is not None or not recovered
        if signs_of_life != self._signs_of_life or (answered and recovered) or not reachable:
            self._signs_of_life, self._alive_ms = signs_of_life, now_ms
        if now_ms - self._alive_ms >= self._worker_ms:
            doing = "Kafka's answers" if recovered else "recovery to end"
            return f"the worker has waited for {doing} for {(now_ms - self._alive_ms) / 1000:.0f} s"
        return self._stuck_partition(now_ms, ends, positions)

    def _stuck_partition(self, now_ms: float, ends: Mapping[int, int] | None, positions: Mapping[int, int]) -> str | None:
        for gone in self._positions.keys() - positions.keys():
            del self._positions[gone]
        for partition, position in positions.items():
            behind = None if ends is None else ends.get(partition, 0) - 1 - position
            last, since_ms = self._positions.get(partition, (None, now_ms))
            if behind is None or behind <= 0 or last != position:
                self._positions[partition] = (position, now_ms)
            elif now_ms - since_ms >= self._partition_ms:
                return f"partition {partition} is {behind} records behind and stood still for {(now_ms - since_ms) / 1000:.0f} s"
        return None
