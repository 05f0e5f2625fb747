"""Bounded admission: so many requests at once, a short queue, then 429. Else an overload makes everybody slow.

A gate lets `max_concurrent` requests in. The next `queue_max` wait in order of arrival, each for `queue_deadline_s` at
most; whoever finds the queue full, or waits for longer, is shed. So an admitted request waited for a bounded time, and
engines never get more than they can work at (Little's law: what waits here would wait there, but unshed and unseen).

A place is taken and handed over in one synchronous step each, so none is lost or given twice; a waiting client that
leaves gives its place in the queue to the next, and one that leaves just as its turn comes hands it on.
"""

import asyncio
import math
from collections import deque
from typing import Literal

import msgspec

Cause = Literal["queue_full", "queue_deadline", "held_bytes"]  # the last is of `held_bodies.py`


class Admission(msgspec.Struct, frozen=True):
    """The bounds of one gate: requests under way, requests waiting, and seconds of waiting."""

    max_concurrent: int
    queue_max: int
    queue_deadline_s: float


class Shed(Exception):
    """A request was not let in; `cause` says why, `retry_after_s` when to come back."""

    def __init__(self, cause: Cause, retry_after_s: int) -> None:
        super().__init__(cause)
        self.cause = cause
        self.retry_after_s = retry_after_s


class Gate:
    """One concurrency limit with its queue. For one event loop.

    Attributes:
        in_use: requests inside.
        shed: requests refused, by cause.
        bounds: may be replaced at any time; more room is given to those who wait.
    """

    __slots__ = ("_bounds", "_waiting", "in_use", "shed")

    def __init__(self, bounds: Admission) -> None:
        self._bounds = bounds
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self.in_use = 0
        self.shed: dict[Cause, int] = {"queue_full": 0, "queue_deadline": 0}

    def __repr__(self) -> str:
        return f"<Gate {self.in_use} of {self._bounds.max_concurrent}, {self.queued} queued>"

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def bounds(self) -> Admission:
        """The bounds in force."""
        return self._bounds

    @bounds.setter
    def bounds(self, bounds: Admission) -> None:
        self._bounds = bounds
        while self.in_use < bounds.max_concurrent and self._let_in():
            self.in_use += 1

    def try_enter(self) -> bool:
        """Take a place if one is free and nobody waits for it."""
        if self.in_use < self._bounds.max_concurrent and not self._waiting:
            self.in_use += 1
            return True
        return False

    async def enter(self) -> None:
        """Take a place, waiting for one if need be. Whoever returns from here must `leave`.

        Raises:
            Shed: the queue is full, or the wait was too long.
        """
        if self.try_enter():
            return
        if len(self._waiting) >= self._bounds.queue_max:
            raise self._refuse("queue_full")
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(turn)
        timer = loop.call_later(self._bounds.queue_deadline_s, self._expire, turn)
        try:
            entered = await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(turn)
            elif turn.result():
                self.leave()  # the turn came in the same moment
            raise
        finally:
            timer.cancel()
        if not entered:
            raise self._refuse("queue_deadline")

    def leave(self) -> None:
        """Give the place to the first who waits, else back."""
        if self.in_use <= self._bounds.max_concurrent and self._let_in():
            return
        self.in_use -= 1
        assert self.in_use >= 0, "a place was given back twice"

    def _let_in(self) -> bool:
        """Tell the first who waits that its turn has come; False if nobody waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else its client has just left
                turn.set_result(True)
                return True
        return False

    def _expire(self, turn: asyncio.Future[bool]) -> None:
        if not turn.done():
            self._forget(turn)
            turn.set_result(False)

    def _forget(self, turn: asyncio.Future[bool]) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)

    def _refuse(self, cause: Cause) -> Shed:
        self.shed[cause] += 1
        # Those who wait now will be through or gone by then.
        return Shed(cause, max(1, math.ceil(self._bounds.queue_deadline_s)))
