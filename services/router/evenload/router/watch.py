"""What may interrupt a request while it waits: its client leaves, or a deadline passes.

Both cancel the request's own task, as `asyncio.timeout` does, so every await point is covered and no await needs to
know. A request costs one listening task and one timer. The timer is lazy: moving the deadline, which happens per chunk,
stores a float; only when the timer fires is the deadline compared and, if it has moved, the timer set again.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Limit = Literal["first_token", "answer", "idle"]

LOOK_AGAIN_S = 1.0  # while nothing is being waited for, a due timer looks again after this


class Watch:
    """Interrupts one task; used by that task only.

    Attributes:
        client_left: whether the client has gone.
    """

    __slots__ = (
        "_cancels",
        "_closed",
        "_deadline_s",
        "_expired",
        "_limit",
        "_listener",
        "_loop",
        "_task",
        "_timer",
        "client_left",
    )

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._listener: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = math.inf
        self._limit: Limit = "idle"
        self._expired: Limit | None = None
        self._cancels = 0
        self._closed = False
        self.client_left = False

    def listen(self, receive: Receive) -> None:
        """Begin to watch for the client's leaving; the body must have been read."""
        self._listener = self._loop.create_task(self._listen(receive))

    def limit(self, seconds: float, limit: Limit) -> None:
        """From now on, waiting for more than `seconds` is an interruption named `limit`."""
        self._limit = limit
        self._deadline_s = deadline_s = self._loop.time() + seconds
        if self._timer is None:
            self._timer = self._loop.call_at(deadline_s, self._due)
        elif self._timer.when() > deadline_s:
            self._timer.cancel()
            self._timer = self._loop.call_at(deadline_s, self._due)

    def unlimit(self) -> None:
        """Nothing is waited for from the upstream now."""
        self._deadline_s = math.inf

    def take_expired(self) -> Limit | None:
        """In an `except CancelledError`: name the deadline that caused it and undo the cancellation.

        Returns:
            None if the client left or somebody else cancelled; then the error must go on.
        """
        expired, self._expired = self._expired, None
        if expired is None or self.client_left:
            return None
        self._undo()
        return expired

    def take_left(self) -> bool:
        """In an `except CancelledError`: whether it is only that the client left; undoes the cancellation if so."""
        if not self.client_left:
            return False
        self._undo()
        return self._task.cancelling() == 0

    def close(self) -> None:
        """Stop watching."""
        self._closed = True
        if self._listener is not None:
            self._listener.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _undo(self) -> None:
        while self._cancels:
            self._cancels -= 1
            self._task.uncancel()

    def _interrupt(self) -> None:
        self._cancels += 1
        self._task.cancel()

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._closed:
            self.client_left = True
            self._interrupt()

    def _due(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        if self._deadline_s <= now_s:
            self._deadline_s = math.inf
            self._expired = self._limit
            self._interrupt()
        else:
            self._timer = self._loop.call_at(min(self._deadline_s, now_s + LOOK_AGAIN_S), self._due)
