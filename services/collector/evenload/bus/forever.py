"""Background tasks that cannot die unnoticed: one that fails is logged, counted and started again."""

import asyncio
from collections.abc import Awaitable, Callable

from evenload.bus.client_logs import limited_logger

log = limited_logger(__name__)

BACKOFF_S = 1.0


def cancelled() -> bool:
    """Tell whether the running task was asked to end.

    A CancelledError alone does not say so: aiokafka lets its own out when a connection breaks at the wrong moment, and
    a task that takes that for its end dies without a word.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Forever:
    """One coroutine function, run again whenever it ends or fails, until `stop`.

    Attributes:
        failures: how often it failed.
        failing: whether it is down at the moment, waiting to be started again.
    """

    def __init__(self, name: str, work: Callable[[], Awaitable[None]], *, backoff_s: float = BACKOFF_S) -> None:
        """Start `work` on the running loop."""
        self.name = name
        self.failures = 0
        self.failing = False
        self._work = work
        self._backoff_s = backoff_s
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    def __repr__(self) -> str:
        return f"<Forever {self.name} alive={self.alive} failures={self.failures}>"

    @property
    def alive(self) -> bool:
        """Whether it is at work."""
        return not self._task.done() and not self.failing

    async def stop(self) -> None:
        """Cancel it and wait for its end."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self._work()
            except (Exception, asyncio.CancelledError):  # whatever it is, the work must go on
                if cancelled():
                    raise
                log.exception("%s failed and is started again in %.1f s", self.name, self._backoff_s)
                self.failures += 1
            self.failing = True
            await asyncio.sleep(self._backoff_s)
            self.failing = False
