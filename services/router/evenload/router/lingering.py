"""Places that refused requests keep for as long as answered ones take.

A refusal that is the client's fault says nothing about the instance and is over at once. Were its place free at once,
an instance that refuses what the others answer would have the shortest queue of all, and draw the pool. So the place
stays taken, for balancing only, until an answer would usually have been whole: then it gets its share and no more. It
awaits no first token meanwhile and holds no prompt, so nothing is predicted or learned from it, and long prompts that
are refused for their length weigh no more than others.

What it does not do: keep the instance's share from the clients that are refused there.
"""

import heapq

from evenload.routing.leases import Lease

PLACES_MAX = 4096  # of one router; beyond, places are free at once
LINGER_MS_MAX = 30_000.0
USUAL_WEIGHT = 0.05  # of an answer's duration in the smoothed one


class Lingering:
    """Leases that are over, and count for a while."""

    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Lease]] = []  # until, number, lease
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    def keep(self, lease: Lease, now_ms: float, rest_ms: float) -> None:
        """Let go of a lease in `rest_ms`, at once if that is nothing or there are too many."""
        lease.linger()
        if rest_ms <= 0.0 or len(self._heap) >= PLACES_MAX:
            lease.release()
            return
        self._number += 1
        heapq.heappush(self._heap, (now_ms + min(rest_ms, LINGER_MS_MAX), self._number, lease))

    def release(self, now_ms: float) -> None:
        """Let go of those whose time is over."""
        while self._heap and self._heap[0][0] <= now_ms:
            heapq.heappop(self._heap)[2].release()
