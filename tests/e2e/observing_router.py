"""A router that observes more than its clients cause: `observing_router.py SETTINGS EVENTS_PER_S`.

Says at its end, on one line, how many it observed: events 0, 1, 2 ... of instances `load-0` to `load-15` in turn.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from evenload.cli.logs import setup_logging
from evenload.router.build import Router, build
from evenload.router.main import serve
from evenload.schemas import Outcome
from evenload.settings import load_settings

INSTANCES = 16
TICK_S = 0.02


def event(number: int) -> Outcome:
    """What is observed."""
    return Outcome(instance=f"load-{number % INSTANCES}", kind="ok", request_id=f"load-{number}", duration_ms=120.0)


class Observing:
    """Stands in front of a router, for as long as that lives."""

    def __init__(self, router: Router, events_per_s: float) -> None:
        self._front = router.front
        self._emitter = router.dispatcher.emitter
        self._events_per_s = events_per_s
        self._observed = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass everything on; observe between start and end."""
        if scope["type"] != "lifespan":
            await self._front(scope, receive, send)
            return
        observing = asyncio.create_task(self._observe())

        async def receive_and_stop() -> Any:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                observing.cancel()
                print(f"observed {self._observed}", flush=True)
            return message

        await self._front(scope, receive_and_stop, send)

    async def _observe(self) -> None:
        begun_s = time.monotonic()
        while True:
            while self._observed < (time.monotonic() - begun_s) * self._events_per_s:
                if self._emitter.add(event(self._observed), time.time_ns() // 1_000_000) is None:
                    print(f"lost load-{self._observed}", flush=True)
                self._observed += 1
            await asyncio.sleep(TICK_S)


def main() -> None:
    """Run."""
    settings = load_settings(Path(sys.argv[1]))
    setup_logging(settings.log, "router")
    router = build(settings, dict(os.environ))
    router.front = Observing(router, float(sys.argv[2]))
    serve(router)


if __name__ == "__main__":
    main()
