"""`/admin/faults` of a simulated engine: shows, sets and heals its faults, or those of a sibling."""

import asyncio
from collections.abc import Sequence

import msgspec

from evenload.demo.engine_process import EngineProcess
from evenload.demo.faults import FaultError
from evenload.demo.http_server import Exchange


class EngineAdmin:
    """Answers in tasks, since a fault takes its time.

    Args:
        own: Name of the engine that is meant where a request names none.
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, exchange: Exchange, engines: Sequence[EngineProcess]) -> None:
        """Answer with the faults of one of `engines`; 404 names them if it is none of them, 400 says what is wrong."""
        task = asyncio.get_running_loop().create_task(self._answer(exchange, engines))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Drop what has no answer yet."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, exchange: Exchange, engines: Sequence[EngineProcess]) -> None:
        name = exchange.query.get("engine", self._own)
        engine = next((one for one in engines if one.name == name), None)
        if engine is None:
            names = ", ".join(one.name for one in engines)
            exchange.respond(404, msgspec.json.encode({"detail": f"no engine of that name here; there are {names}"}))
            return
        try:
            if exchange.method == "POST":
                await engine.set_faults(msgspec.json.decode(exchange.body), spare=exchange)
            elif exchange.method == "DELETE":
                await engine.heal(spare=exchange)
            elif exchange.method != "GET":
                exchange.respond(405, b'{"detail":"Method Not Allowed"}', extra=(("allow", "GET, POST, DELETE"),))
                return
        except (FaultError, msgspec.DecodeError) as error:
            exchange.respond(400, msgspec.json.encode({"detail": str(error)}))
            return
        exchange.respond(200, msgspec.json.encode(engine.status()))
