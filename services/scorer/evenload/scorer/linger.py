"""The linger that producers are advised to use: what keeps a partition near its target of records per second.

    L' = clamp(L * rate / target, 20, 500), with rate / target bounded to 0.5 .. 2 per correction of one second

Faust costs per record, not per event; with a fixed number of producers records per second go with 1/L. The rate is
taken over log time when that passed faster than the clock, so that working off a backlog does not look like a flood;
and when it passed slower, because the worker is behind: it applies less then than arrives.
It does not handle producers that ignore the advice.
"""

LINGER_MS_MIN = 20.0
LINGER_MS_MAX = 500.0
LINGER_MS_START = 50.0
WINDOW_MS = 1000.0
STEP_MAX = 2.0
BEHIND_MS = 1200.0  # longer than a window, in which a partition may fall silent after some records


class LingerAdvice:
    """Adapts the linger of one partition once a second."""

    def __init__(self, target_per_s: float, linger_ms: float = LINGER_MS_START) -> None:
        self._target_per_s = target_per_s
        self._linger_ms = linger_ms
        self._records = 0
        self._since_ms: float | None = None
        self._since_log_ms = 0
        self._ahead_ms = float("inf")  # the clock less log time, at its least

    @property
    def linger_ms(self) -> int:
        """Advised linger, 20..500 ms."""
        return round(self._linger_ms)

    def record(self) -> None:
        """Count a record of the partition."""
        self._records += 1

    def update(self, mono_ms: float, log_ms: int) -> None:
        """Correct the advice when a second has passed since the last correction.

        Args:
            mono_ms: monotonic clock, milliseconds.
            log_ms: log time of the newest record.
        """
        self._ahead_ms = min(self._ahead_ms, mono_ms - log_ms) if log_ms else self._ahead_ms
        if self._since_ms is None or not self._since_log_ms:  # before the first record there is no log time
            self._since_ms, self._since_log_ms, self._records = mono_ms, log_ms, 0
            return
        elapsed_ms = mono_ms - self._since_ms
        if elapsed_ms < WINDOW_MS:
            return
        passed_ms = float(max(1, log_ms - self._since_log_ms))
        if mono_ms - log_ms < self._ahead_ms + BEHIND_MS:
            passed_ms = max(elapsed_ms, passed_ms)
        step = self._records * 1000.0 / passed_ms / self._target_per_s
        step = min(STEP_MAX, max(1.0 / STEP_MAX, step))
        self._linger_ms = min(LINGER_MS_MAX, max(LINGER_MS_MIN, self._linger_ms * step))
        self._since_ms, self._since_log_ms, self._records = mono_ms, log_ms, 0
