"""How many retries a pool may make: a share of its traffic, so that a failing fleet is not asked thrice as much.

A token bucket after Finagle's RetryBudget: each request earns `share` of a retry, each second `per_s_min` (a quiet pool
must be able to retry too), up to `SAVED_MAX` saved up; each retry takes one. A pool starts with all it can save. It is
one router's own: replicas need not agree, since each retries its own requests.
"""

SAVED_MAX = 100.0


class RetryBudget:
    """The retries that one pool has left.

    Args:
        share: of the requests.
        per_s_min: retries per second besides.

    Attributes:
        withheld: retries that were refused.
    """

    __slots__ = ("_at_ms", "_per_s_min", "_saved", "_share", "withheld")

    def __init__(self, share: float = 0.2, per_s_min: float = 10.0) -> None:
        self._share = share
        self._per_s_min = per_s_min
        self._saved = SAVED_MAX
        self._at_ms: float | None = None
        self.withheld = 0

    def __repr__(self) -> str:
        return f"RetryBudget(saved={self._saved:.1f}, withheld={self.withheld})"

    def inherit(self, before: "RetryBudget") -> None:
        """Go on from what another one has saved and withheld."""
        self._saved, self._at_ms, self.withheld = before._saved, before._at_ms, before.withheld

    def earn(self) -> None:
        """One more request came."""
        self._saved = min(SAVED_MAX, self._saved + self._share)

    def take(self, now_ms: float) -> bool:
        """Take one retry; False if none is left."""
        if self._at_ms is not None:
            self._saved = min(SAVED_MAX, self._saved + self._per_s_min * (now_ms - self._at_ms) / 1000.0)
        self._at_ms = now_ms
        if self._saved < 1.0:
            self.withheld += 1
            return False
        self._saved -= 1.0
        return True
