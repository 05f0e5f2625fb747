"""One simulated engine process: it lives, and faults slow it, take it down and bring it back.

What faults do to single requests is in `engine_intake.py`.
"""

import asyncio
from random import Random

import msgspec

from evenload.demo.engine_life import EngineLife, EngineSpec
from evenload.demo.faults import Faults
from evenload.demo.http_server import Exchange, HttpListener

ENGINE_FAILED = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class EngineProcess:
    """A process with one port, and one life after the other.

    Args:
        name: How siblings and tables call it.
        spec: What kind of engine lives here.
        rng: For everything that it draws.
        listener: Its port.
    """

    def __init__(self, name: str, spec: EngineSpec, rng: Random, listener: HttpListener) -> None:
        self.name = name
        self.spec = spec
        self.rng = rng
        self.faults = Faults()
        self.core_dead = False
        self._listener = listener
        self._life: EngineLife | None = None
        self._revival: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "up" if self._listener.listening else "down"
        kind = type(self).__name__
        return f"{kind}({self.name}, {self.url}, {self.spec.preset.name}, {state}, faults={self.faults.active()})"

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.port

    @property
    def url(self) -> str:
        """The base URL, without /v1."""
        return f"http://{self._listener.host}:{self._listener.port}"

    @property
    def life(self) -> EngineLife:
        """The present life; it ends with a restart or crash."""
        assert self._life is not None, "the engine is down"
        return self._life

    async def start(self) -> None:
        """Listen, cold."""
        self._life = EngineLife(self.spec, self.rng)
        self.core_dead = False
        if self.faults.slow is not None:
            self._life.set_slowdown(self.faults.slow.factor)
        await self._listener.open()

    async def stop(self) -> None:
        """Drop everything and be gone."""
        self._cancel_revival()
        self._go_down(None)

    def _go_down(self, spare: Exchange | None) -> None:
        if self._life is not None:
            self._life.end()
            self._life = None
        self._listener.close(reset=True, spare=spare)

    def _kill_core(self) -> None:
        if self._life is None:
            return
        self.core_dead = True
        answers = self._life.unfinished()
        self._life.end()
        for answer in answers:
            answer.exchange.on_gone = None  # its life has ended
            answer.fail(500, ENGINE_FAILED, "InternalServerError")

    async def _exit(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._go_down(None)

    async def _revive(self, down_s: float) -> None:
        await asyncio.sleep(down_s)
        self.faults = msgspec.structs.replace(self.faults, restart=None)
        await self.start()

    def _cancel_revival(self) -> None:
        if self._revival is not None:
            self._revival.cancel()
            self._revival = None

    async def set_faults(self, document: object, *, spare: Exchange | None = None) -> Faults:
        """Set or heal the faults that `document` names.

        Args:
            document: See `evenload.demo.faults`.
            spare: The request that asked for it, whose connection may flush before a crash.

        Raises:
            FaultError: The document is wrong; nothing is changed.
        """
        faults = self.faults.merged(document)
        assert isinstance(document, dict)
        self.faults = faults
        if self._life is not None:
            self._life.set_slowdown(faults.slow.factor if faults.slow is not None else 1.0)
        if faults.crash is not None:
            self._cancel_revival()
            self._go_down(spare)
        elif document.get("restart") is not None and faults.restart is not None:
            self._cancel_revival()
            self._go_down(spare)
            self._revival = asyncio.create_task(self._revive(faults.restart.down_s))
        elif document.get("kill_core") is not None and faults.kill_core is not None:
            self._cancel_revival()
            self._kill_core()
            self._revival = asyncio.create_task(self._exit(faults.kill_core.exit_s))
        elif document.get("stop") is not None and self._life is not None:
            self._life.freeze()
            self._listener.refuse()
        elif not faults.down and (self.core_dead or not self._listener.listening):
            self._cancel_revival()
            self._go_down(spare)
            await self.start()
        return faults

    async def heal(self, *, spare: Exchange | None = None) -> None:
        """Heal all faults; an engine that is down comes back cold, at once."""
        await self.set_faults(dict.fromkeys(Faults.__struct_fields__), spare=spare)

    def status(self) -> dict[str, object]:
        """What the admin endpoint shows."""
        return {
            "engine": self.name,
            "url": self.url,
            "preset": self.spec.preset.name,
            "up": self._listener.listening,
            "faults": self.faults.active(),
        }
