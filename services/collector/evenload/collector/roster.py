"""Who is polled: one poller per instance with a page, begun and ended as instances come and go."""

import asyncio
import random
from collections.abc import Callable
from functools import partial

from evenload.bus.forever import Forever
from evenload.collector.poller import Poller
from evenload.settings import InstanceSettings, PoolSettings, Settings

Served = tuple[InstanceSettings, tuple[str, ...]]


class Roster:
    """The pollers.

    Attributes:
        pollers: by instance.
        tasks: those that run, by instance.
    """

    def __init__(self, make: Callable[[InstanceSettings, PoolSettings], Poller], poll_s: float) -> None:
        """Take what makes a poller, and the time between two polls, over which the first ones are spread."""
        self.pollers: dict[str, Poller] = {}
        self.tasks: dict[str, Forever] = {}
        self._make = make
        self._poll_s = poll_s
        self._known: dict[str, Served] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._running = False

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Make what polls the instances of these settings; calling the result goes over to them.

        Those that are the same are not disturbed.

        Raises:
            SettingsError: one of them cannot be asked.
        """
        wanted = {
            instance.id: (instance, pool)
            for pool in settings.pools
            for instance in pool.instances
            if instance.kind != "none"
        }
        known = {name: (instance, pool.models) for name, (instance, pool) in wanted.items()}
        new = {name: self._make(*wanted[name]) for name in known if known[name] != self._known.get(name)}
        return partial(self._follow, known, new)

    def _follow(self, known: dict[str, Served], new: dict[str, Poller]) -> None:
        for name in self._known:
            if name not in known or name in new:
                self._end(name)
        self.pollers.update(new)
        self._known = known
        if self._running:
            self.start()

    def start(self) -> None:
        """Begin to poll; in the event loop."""
        self._running = True
        for name, poller in self.pollers.items():
            if name not in self.tasks:
                phase_s = random.uniform(0, self._poll_s)
                self.tasks[name] = Forever(f"poll {name}", partial(poller.run, phase_s))

    async def close(self) -> None:
        """Stop polling."""
        self._running = False
        await asyncio.gather(*(task.stop() for task in self.tasks.values()), *self._ending)

    def _end(self, name: str) -> None:
        del self.pollers[name]
        task = self.tasks.pop(name, None)
        if task is not None:
            ending = asyncio.get_running_loop().create_task(task.stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
