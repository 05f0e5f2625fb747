"""The least time between two snapshots of an instance: what keeps a partition near a target of snapshots per second.

    T' = clamp(T * rate / target, flush_ms, 4 * flush_ms), rate / target bounded to 0.5 .. 2 per second

Every router reads every snapshot, so the bytes go with instances x snapshots per second x routers. Few instances are
shown at once, up to 40 times a second each; beyond some 40 busy ones in a partition each must wait longer, and as many
as there may be, a tenth of a second is enough to wait for a change that is seen at all.
"""

TARGET_PER_S = 400.0
STRETCH_MAX = 4.0
WINDOW_MS = 1000.0
STEP_MAX = 2.0


class FlushPace:
    """Adapts the interval of one partition once a second.

    Attributes:
        interval_ms: least time between two snapshots of an instance.
    """

    def __init__(self, flush_ms: float, target_per_s: float = TARGET_PER_S) -> None:
        self.interval_ms = flush_ms
        self._flush_ms = flush_ms
        self._target_per_s = target_per_s
        self._published = 0
        self._since_ms: float | None = None

    def published(self, count: int) -> None:
        """Count snapshots of the partition."""
        self._published += count

    def update(self, mono_ms: float) -> None:
        """Correct the interval when a second has passed since the last correction; `mono_ms` is monotonic."""
        passed_ms = WINDOW_MS if self._since_ms is None else mono_ms - self._since_ms
        if passed_ms < WINDOW_MS:
            return
        if self._since_ms is not None:
            step = self._published * 1000.0 / passed_ms / self._target_per_s
            step = min(STEP_MAX, max(1.0 / STEP_MAX, step))
            self.interval_ms = min(STRETCH_MAX * self._flush_ms, max(self._flush_ms, self.interval_ms * step))
        self._since_ms, self._published = mono_ms, 0
