"""The proxy under test: one that runs already, or one that is started here."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from evenload.broker import ports
from evenload.cli.supervise import Child

from .peers import Peer

STOP_S = 1.0  # how a process ends has a check of its own


@dataclass
class Target:
    """A proxy.

    Attributes:
        name: short.
        title: with its version.
        url: base URL.
        start: makes one more process of it; returns it and its base URL. None if it was not started here.
        stop_signal: what stops it in order.
    """

    name: str
    title: str
    url: str
    start: Callable[[], tuple[Child, str]] | None
    stop_signal: signal.Signals = signal.SIGTERM

    @classmethod
    def of(cls, name: str, peer: Peer, engines: Sequence[int], folder: Path) -> Self:
        """Describe one that is to be started."""

        def start() -> tuple[Child, str]:
            port = ports.choose_free("127.0.0.1")
            own = folder / str(port)
            own.mkdir()
            child = Child(peer.spec(port, engines, own), emit=lambda *_: None)
            child.start()
            return child, f"http://127.0.0.1:{port}"

        return cls(name, peer.title, "", start, peer.stop_signal)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run it, if it is to be started."""
        if self.start is None:
            yield
            return
        async with self.another() as (_, url):
            self.url = url
            yield

    @contextlib.asynccontextmanager
    async def another(self) -> AsyncIterator[tuple[Child, str]]:
        """Run one more process of it."""
        assert self.start is not None
        child, url = await asyncio.to_thread(self.start)
        try:
            await asyncio.to_thread(child.wait_ready)
            yield child, url
        finally:
            await asyncio.to_thread(child.stop, STOP_S)
