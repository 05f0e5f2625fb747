"""The router's idea of log time: the newest snapshot's `now_ms`, carried on by the router's monotonic clock.

A snapshot is some milliseconds old when it arrives, so the estimate keeps the least delayed anchor and lets go of it
slowly (monotonic clocks drift). A difference of more than a second is a jump of the broker's clock and is followed at
once; own events keep the times they were observed at until a snapshot includes them, a moment later.
"""

JUMP_MS = 1_000
DRIFT_MS = 1  # per anchor


class LogClock:
    """Turns monotonic milliseconds into log milliseconds."""

    def __init__(self, log_ms: int, mono_ms: float) -> None:
        self._offset_ms = int(log_ms - mono_ms)
        self.anchored = False

    def now_ms(self, mono_ms: float) -> int:
        """Return the estimated log time."""
        return int(mono_ms) + self._offset_ms

    def anchor(self, log_ms: int, mono_ms: float) -> None:
        """Take a snapshot's time into account."""
        offset_ms = log_ms - int(mono_ms)
        ahead = offset_ms - self._offset_ms
        first, self.anchored = not self.anchored, True
        if first or ahead > 0 or abs(ahead) > JUMP_MS:
            self._offset_ms = offset_ms
        else:
            self._offset_ms -= min(DRIFT_MS, -ahead)
