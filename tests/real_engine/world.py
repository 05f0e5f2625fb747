"""What the steps stand on, and what they say."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .engine import RealEngine
from .front import Front, seconds_until
from .record import Record


@dataclass(frozen=True)
class Check:
    """One thing that must hold.

    Attributes:
        expected: in words.
        seen: in words and figures.
        ok: whether it holds; None for what is only told, as nobody promised anything.
    """

    expected: str
    seen: str
    ok: bool | None

    @property
    def word(self) -> str:
        """PASS, FAIL or SEEN."""
        return "SEEN" if self.ok is None else "PASS" if self.ok else "FAIL"


@dataclass
class World:
    """Two engines and Evenload before them.

    Attributes:
        roomy: queues without a bound; on SIGTERM it finishes what runs, for up to 10 s.
        tight: refuses what is more than six requests at once; SIGTERM is its default one.
        folder: for what tools write.
    """

    roomy: RealEngine
    tight: RealEngine
    front: Front
    record: Record
    folder: Path

    async def within(self, condition: Callable[[], bool], limit_s: float) -> float | None:
        """As `seconds_until`, while the loop goes on."""
        return await asyncio.to_thread(seconds_until, condition, limit_s)

    async def page(self, engine: RealEngine, name: str) -> None:
        """Record a page of metrics."""
        self.record.page(name, await asyncio.to_thread(engine.page))

    async def usable(self, engine: RealEngine, limit_s: float) -> float | None:
        """Wait until the router believes that an engine can be used."""
        return await self.within(lambda: self._is_usable(engine), limit_s)

    def _is_usable(self, engine: RealEngine) -> bool:
        state = self.front.of(engine)
        return bool(state["ready"] and not state["draining"] and not state["excluded"] and state["running"] is not None)

    async def whole(self) -> list[Check]:
        """Start again what the last step has ended."""
        return [await self._again(engine) for engine in (self.roomy, self.tight) if not engine.child.running]

    async def in_use(self) -> None:
        """Wait until both are in use.

        Raises:
            AssertionError: One is not, after 30 s.
        """
        for engine in (self.roomy, self.tight):
            assert await self.usable(engine, 30) is not None, f"{engine.name} is not in use after 30 s"

    async def _again(self, engine: RealEngine) -> Check:
        """Start an engine, which the fleet must notice."""
        print(f"  {engine.name} is started again, which takes minutes ...", flush=True)
        engine.start()
        cancelled = threading.Event()
        try:
            took_s = await asyncio.to_thread(engine.wait, cancelled)
        finally:
            cancelled.set()  # the thread must not go on for minutes after Ctrl-C
        back_s = await self.usable(engine, 15)
        return Check(
            f"started again, {engine.name} is in use within 5 s of its first answer, and warms up",
            f"started in {took_s:.0f} s; in use {said(back_s)} later; score {self.front.of(engine)['score']:.0f}",
            back_s is not None and back_s <= 5,
        )


def said(seconds: float | None) -> str:
    """Return a duration in words."""
    return "never" if seconds is None else f"{seconds:.1f} s"
