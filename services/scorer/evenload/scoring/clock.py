"""The grid of log time. Windows expire and damping rises at grid ticks only."""

TICK_MS = 100
TICKS_PER_SECOND = 10


def tick_of(log_ms: int) -> int:
    """Return the last grid tick at or before `log_ms`."""
    return log_ms // TICK_MS
