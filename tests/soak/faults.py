"""What is done to one scorer of two, in an order that a seed decides."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable

from tests.scorer.worker import WorkerProcess

SESSION_S = 3
READY_S = 120.0  # longest time from a start to readiness; both workers may be hit again and again meanwhile
END_S = 30.0

Note = Callable[[str], None]


class Victim:
    """A scorer, and the faults it suffers.

    Attributes:
        gave_up: times that it ended itself without being asked, as it does after a standstill; it is started again.
        recovery_s: from each start to readiness.
    """

    def __init__(self, name: str, worker: WorkerProcess, seed: int, note: Note) -> None:
        self.gave_up = 0
        self.recovery_s: list[float] = []
        self._name = name
        self._worker = worker
        self._rng = random.Random(seed)
        self._note = note
        self._faults: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (4.0, self.kill),
            (1.5, self.hand_over),
            (1.5, self.stand_still),
            (1.0, self.hesitate),
            (1.0, self.kill_while_starting),
        ]

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        self._worker.start()
        await self.recover()

    async def next_fault(self) -> None:
        """Wait a random moment, do something bad, and wait until the worker is ready again."""
        await asyncio.sleep(self._rng.uniform(0.0, 2.5))
        weights, faults = zip(*self._faults, strict=True)
        await self._rng.choices(faults, weights)[0]()
        await self.recover()

    async def recover(self) -> None:
        """Wait until it is ready; starts it again whenever it has ended itself."""
        begun = time.monotonic()
        while not await asyncio.to_thread(self._ready):
            if time.monotonic() - begun > READY_S:
                raise AssertionError(f"{self._name} is not ready after {READY_S:.0f} s")
            await asyncio.sleep(0.1)
        self.recovery_s.append(time.monotonic() - begun)

    async def kill(self) -> None:
        """kill -9, and start anew at once or after the group has given its partitions to the other one."""
        away_s = self._rng.choice([0.0, 0.0, SESSION_S + 1.5])
        self._say(f"kill -9, back after {away_s:.1f} s")
        self._worker.kill()
        await asyncio.sleep(away_s)
        self._worker.start()

    async def kill_while_starting(self) -> None:
        """kill -9 twice, the second one during import, join or recovery."""
        again_s = self._rng.uniform(0.5, 5.0)
        self._say(f"kill -9, and again {again_s:.1f} s after the restart")
        self._worker.kill()
        self._worker.start()
        await asyncio.sleep(again_s)
        self._worker.kill()
        self._worker.start()

    async def hand_over(self) -> None:
        """SIGTERM: it leaves in order, the other one has all partitions for a while."""
        away_s = self._rng.uniform(0.0, 3.0)
        self._say(f"SIGTERM, back after {away_s:.1f} s")
        self._worker.signal(signal.SIGTERM)
        await self._end()
        await asyncio.sleep(away_s)
        self._worker.start()

    async def stand_still(self) -> None:
        """SIGSTOP beyond its session, then SIGCONT: it must end without overwriting what its successor wrote."""
        still_s = SESSION_S + self._rng.uniform(0.5, 2.5)
        self._say(f"SIGSTOP for {still_s:.1f} s")
        self._worker.signal(signal.SIGSTOP)
        await asyncio.sleep(still_s)
        self._worker.signal(signal.SIGCONT)
        code = await self._end()
        assert code == 1, f"{self._name} stood still for {still_s:.1f} s and ended with {code}"
        self._worker.start()

    async def hesitate(self) -> None:
        """SIGSTOP for less than its session."""
        still_s = self._rng.uniform(0.3, 1.5)
        self._say(f"SIGSTOP for {still_s:.1f} s")
        self._worker.signal(signal.SIGSTOP)
        await asyncio.sleep(still_s)
        self._worker.signal(signal.SIGCONT)

    def _say(self, what: str) -> None:
        self._note(f"{self._name}: {what}")

    async def _end(self) -> int:
        return await asyncio.to_thread(self._worker.end, END_S)

    def _ready(self) -> bool:
        code = self._worker.code()
        if code is not None:
            self.gave_up += 1
            self._say(f"ended itself with {code}, started again")
            self._worker.kill()
            self._worker.start()
        return self._worker.get("/readyz") == "ready\n"
