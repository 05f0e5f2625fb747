"""A run of steps whose batch does not change, in closed form.

Step `i` (from 1) of a run takes `first_ms + slope_ms * (i - 1)`: each step adds one KV token per decoder. So the end of
step `j` is `start + j * first + slope * j * (j - 1) / 2`, and the number of steps done at any time is a root of that.
Everything is computed from the run's start, hence looking at a run often or rarely gives the same bits.
"""

from collections.abc import Sequence as Seq
from math import sqrt

from evenload.sim.sequence import Sequence


class Run:
    """`steps` equal-batch steps from `start_ms`; `done` of them have been applied.

    Attributes:
        chunks: Prefill chunks `(sequence, tokens)`; a run with chunks has one step.
        last_ms: When the last step ends.
    """

    __slots__ = ("chunks", "done", "first_ms", "last_ms", "slope_ms", "start_ms", "steps")

    def __init__(
        self, start_ms: float, first_ms: float, slope_ms: float, steps: int, chunks: Seq[tuple[Sequence, int]] = ()
    ) -> None:
        self.start_ms = start_ms
        self.first_ms = first_ms
        self.slope_ms = slope_ms
        self.steps = steps
        self.chunks = chunks
        self.done = 0
        self.last_ms = self.end_ms(steps)

    def __repr__(self) -> str:
        return f"Run({self.done} of {self.steps} steps from {self.start_ms:.3f} ms, {len(self.chunks)} chunks)"

    def end_ms(self, step: int) -> float:
        """When step number `step` ends."""
        return self.start_ms + step * self.first_ms + self.slope_ms * (step * (step - 1) / 2)

    def steps_by(self, now_ms: float) -> int:
        """How many steps have ended by `now_ms`; never fewer than were applied."""
        if now_ms >= self.last_ms:
            return self.steps
        if now_ms < self.end_ms(self.done + 1):
            return self.done
        guess = min(max(self._root(now_ms - self.start_ms), self.done), self.steps)
        while guess > self.done and self.end_ms(guess) > now_ms:
            guess -= 1
        while guess < self.steps and self.end_ms(guess + 1) <= now_ms:
            guess += 1
        return guess

    def cut_short(self) -> None:
        """End the run with the step that is being computed now."""
        if self.steps > self.done + 1:
            self.steps = self.done + 1
            self.last_ms = self.end_ms(self.steps)

    def _root(self, elapsed_ms: float) -> int:
        if self.slope_ms <= 0:
            return int(elapsed_ms / self.first_ms)
        half = self.first_ms - self.slope_ms / 2
        return int((sqrt(half * half + 2 * self.slope_ms * max(0.0, elapsed_ms)) - half) / self.slope_ms)
