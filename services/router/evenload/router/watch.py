"""What may interrupt a request while it waits: its client leaves, a limit passes, or the client's own deadline.

All cancel the request's own task, as `asyncio.timeout` does, so every await point is covered and none needs to know.

Cheap by sharing: one timer for all requests looks at them every `TICK_S`. Moving a deadline, which happens per chunk,
stores a float. The task that listens for the client's leaving is made at the first look, so a request that is answered
within a tick costs neither timer nor task. Deadlines are late by up to a tick, and so is the notice of a client that
leaves within the first one. 2,000 streams cost 40,000 comparisons a second. The client's own deadline, which few set,
has a timer of its own and is exact.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal

from .wire import Wire

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Limit = Literal["first_token", "answer", "idle", "deadline"]

TICK_S = 0.05


class Watches:
    """The requests that are under way on one event loop; looks at each every `TICK_S` while there are any."""

    def __init__(self) -> None:
        self._all: set[Watch] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # kept: to ask for it costs a system call each time

    def __len__(self) -> int:
        return len(self._all)

    def open(self, receive: Receive, wire: Wire | None = None) -> "Watch":
        """Begin to watch the current task; its request's body must have been read."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        watch = Watch(self, loop, receive, wire)
        self._all.add(watch)
        if self._timer is None:
            self._timer = loop.call_later(TICK_S, self._tick)
        return watch

    def discard(self, watch: "Watch") -> None:
        """Forget a watch."""
        self._all.discard(watch)

    def _tick(self) -> None:
        loop = self._loop
        assert loop is not None
        now_s = loop.time()
        for watch in tuple(self._all):
            watch.look(now_s)
        self._timer = loop.call_later(TICK_S, self._tick) if self._all else None


class Watch:
    """Interrupts one task; used by that task only. Made by `Watches.open`.

    Attributes:
        client_left: whether the client has gone.
        soon: the loop's `call_soon`.
    """

    __slots__ = (
        "_cancels",
        "_deadline_s",
        "_expired",
        "_left_s",
        "_limit",
        "_listener",
        "_now_s",
        "_receive",
        "_task",
        "_until",
        "_watches",
        "_wire",
        "client_left",
        "soon",
    )

    def __init__(
        self, watches: Watches, loop: asyncio.AbstractEventLoop, receive: Receive, wire: Wire | None = None
    ) -> None:
        task = asyncio.current_task(loop)
        assert task is not None
        self._task = task
        self._now_s = loop.time
        self.soon: Callable[..., object] = loop.call_soon
        self._watches: Watches | None = watches
        self._receive = receive
        self._listener: asyncio.Task[None] | None = None
        self._deadline_s = math.inf
        self._left_s = math.inf
        self._limit: Limit = "idle"
        self._expired: Limit | None = None
        self._cancels = 0
        self._until: asyncio.TimerHandle | None = None
        self.client_left = False
        self._wire = wire
        if wire is not None:
            wire.on_gone = self.leave
            if wire.gone:
                self.leave()

    def limit(self, seconds: float, limit: Limit) -> None:
        """From now on, waiting for more than `seconds` is an interruption named `limit`."""
        self._limit = limit
        self._deadline_s = self._now_s() + seconds

    def until(self, at_s: float) -> None:
        """At `at_s` of the loop's clock, whatever is going on is interrupted: the client's own deadline."""
        self._until = self._task.get_loop().call_at(at_s, self._over)

    def unlimit(self) -> None:
        """Nothing is waited for from the upstream now."""
        self._deadline_s = math.inf

    def suspend(self) -> None:
        """As `unlimit`, until `go_on`; of no effect where nothing is limited."""
        if self._deadline_s < math.inf:
            self._left_s = self._deadline_s - self._now_s()
            self._deadline_s = math.inf

    def go_on(self) -> None:
        """Go on with what was left when the limit was suspended, if it is."""
        if self._left_s < math.inf:
            self._deadline_s = self._now_s() + self._left_s
            self._left_s = math.inf

    def look(self, now_s: float) -> None:
        """Interrupt if the deadline has passed; listen for the client's leaving from the first look on."""
        if self._listener is None and self._wire is None:
            self._listener = self._task.get_loop().create_task(self._listen())
        if self._deadline_s <= now_s:
            self._deadline_s = math.inf
            self._expired = self._limit
            self._interrupt()

    def take_expired(self) -> Limit | None:
        """In an `except CancelledError`: name the deadline that caused it and undo the cancellation.

        Returns:
            None if the client left or somebody else cancelled; then the error must go on.
        """
        expired, self._expired = self._expired, None
        if expired is None or self.client_left:
            return None
        self._undo()
        return None if self._task.cancelling() else expired

    def take_left(self) -> bool:
        """In an `except CancelledError`: whether it is only that the client left; undoes the cancellation if so."""
        if not self.client_left:
            return False
        self._undo()
        return self._task.cancelling() == 0

    def leave(self) -> None:
        """The client has gone: interrupt."""
        if self._watches is not None and not self.client_left:
            self.client_left = True
            self._interrupt()

    def close(self) -> None:
        """Stop watching."""
        if self._wire is not None:
            self._wire.on_gone = None
        if self._watches is not None:
            self._watches.discard(self)
            self._watches = None
        if self._listener is not None:
            self._listener.cancel()
        if self._until is not None:
            self._until.cancel()

    def _over(self) -> None:
        # An instance whose own limit has passed as well has failed, whatever the client was ready to wait.
        passed = self._deadline_s <= self._now_s()
        self._deadline_s = math.inf
        self._expired = self._limit if passed else "deadline"
        self._interrupt()

    def _undo(self) -> None:
        while self._cancels:
            self._cancels -= 1
            self._task.uncancel()

    def _interrupt(self) -> None:
        self._cancels += 1
        self._task.cancel()

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.leave()
