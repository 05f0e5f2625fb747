"""Virtual time: a heap of what happens when. Equal times happen in the order in which they were asked for."""

from collections.abc import Callable
from heapq import heappop, heappush
from math import exp, log
from random import Random
from typing import Any

_Z99 = 2.3263478740408408  # 99th percentile of the standard normal


class Timeline:
    """The simulation's only clock, in milliseconds from 0."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.happened = 0
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = 0

    def __repr__(self) -> str:
        return f"Timeline({self.now_ms:.3f} ms, {len(self._heap)} due)"

    def at(self, time_ms: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Have `call(argument)` happen at a time, or now if that has passed."""
        self._order += 1
        heappush(self._heap, (max(time_ms, self.now_ms), self._order, call, argument))

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
