"""Virtual time: a heap of what happens when. Equal times happen in the order in which they were asked for."""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import exp, log
from random import Random
from typing import Any

_Due = tuple[float, int, Callable[[Any], None], Any]
_Z99 = 2.3263478740408408  # 99th percentile of the standard normal


class Timeline:
    """The simulation's only clock, in milliseconds from 0."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.happened = 0
        self._heap: list[_Due] = []
        self._after: dict[float, deque[_Due]] = {}
        self._order = 0

    def __repr__(self) -> str:
        return f"Timeline({self.now_ms:.3f} ms, {len(self._heap)} due)"

    def at(self, time_ms: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Have `call(argument)` happen at a time, or now if that has passed."""
        self._order += 1
        heappush(self._heap, (time_ms if time_ms > self.now_ms else self.now_ms, self._order, call, argument))

    def after(self, delay_ms: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Have `call(argument)` happen after a delay that many calls share.

        What shares a delay is due in the order in which it was asked for, so only the first waits in the heap: there,
        thousands of timeouts that are not needed any more cost nothing.
        """
        self._order += 1
        queue = self._after.setdefault(delay_ms, deque())
        queue.append((self.now_ms + delay_ms, self._order, call, argument))
        if len(queue) == 1:
            self._wait_for(queue)

    def _wait_for(self, queue: deque[_Due]) -> None:
        heappush(self._heap, (*queue[0][:2], self._next_of, queue))

    def _next_of(self, queue: deque[_Due]) -> None:
        _, _, call, argument = queue.popleft()
        if queue:
            self._wait_for(queue)
        call(argument)

    def run(self, until_ms: float) -> None:
        """Let everything happen that is due before `until_ms`."""
        heap = self._heap
        while heap and heap[0][0] < until_ms:
            self.now_ms, _, call, argument = heappop(heap)
            self.happened += 1
            call(argument)


class LogNormal:
    """Delays with a given median and 99th percentile."""

    def __init__(self, p50_ms: float, p99_ms: float, rng: Random) -> None:
        self._mu = log(p50_ms)
        self._sigma = (log(p99_ms) - self._mu) / _Z99
        self._rng = rng

    def draw_ms(self) -> float:
        """Return the next delay."""
        return exp(self._mu + self._sigma * self._rng.gauss(0.0, 1.0))
