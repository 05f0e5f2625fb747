"""A run of steps whose batch does not change, in closed form.

Step `i` (from 1) of a run takes `first_ms + slope_ms * (i - 1)`: each step adds one KV token per decoder. So the end of
step `j` is `start + j * first + slope * j * (j - 1) / 2`, and the number of steps done at any time is a root of that.
Everything is computed from the run's start, hence looking at a run often or rarely gives the same bits.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import sqrt

from evenload.sim.sequence import Sequence


@dataclass(slots=True)
class Run:
    """`steps` equal-batch steps from `start_ms`; `done` of them have been applied.

    Attributes:
        chunks: Prefill chunks `(sequence, tokens)`; a run with chunks has one step.
    """

    start_ms: float
    first_ms: float
    slope_ms: float
    steps: int
    chunks: Seq[tuple[Sequence, int]] = ()
    done: int = 0

    def end_ms(self, step: int) -> float:
        """When step number `step` ends."""
        return self.start_ms + step * self.first_ms + self.slope_ms * (step * (step - 1) / 2)

    def steps_by(self, now_ms: float) -> int:
        """How many steps have ended by `now_ms`; never fewer than were applied."""
        if now_ms >= self.end_ms(self.steps):
            return self.steps
        guess = min(max(self._root(now_ms - self.start_ms), self.done), self.steps)
        while guess > self.done and self.end_ms(guess) > now_ms:
            guess -= 1
        while guess < self.steps and self.end_ms(guess + 1) <= now_ms:
            guess += 1
        return guess

    def cut_short(self) -> None:
        """End the run with the step that is being computed now."""
        self.steps = min(self.steps, self.done + 1)

    def _root(self, elapsed_ms: float) -> int:
        if self.slope_ms <= 0:
            return int(elapsed_ms / self.first_ms)
        half = self.first_ms - self.slope_ms / 2
        return int((sqrt(half * half + 2 * self.slope_ms * max(0.0, elapsed_ms)) - half) / self.slope_ms)
