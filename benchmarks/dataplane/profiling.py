"""Where Evenload's CPU goes: the same load with the router under cProfile, which makes calls dearer than they are."""

import asyncio
import pstats
import sys
from collections.abc import Awaitable, Callable, Mapping

from benchmarks.dataplane.engine import Engine
from benchmarks.dataplane.proxies import Proxy, describe
from benchmarks.pipeline.stack import Case

LINES = 45


async def run(sections: Mapping[str, Callable[[Proxy, Engine], Awaitable[object]]], name: str, owner: Case) -> None:
    """Print, per section, the functions with the most time of their own."""
    engine = Engine()
    servers = await engine.start()
    for section, measured in sections.items():
        output = owner.kafka.folder / f"{section}.prof"
        proxy = describe(name, engine.ports, owner.kafka, owner.prefix)
        proxy.command[1:1] = ["-m", "cProfile", "-o", str(output)]
        await asyncio.to_thread(proxy.start, 1)
        try:
            print(section, await measured(proxy, engine), file=sys.stderr)
        finally:
            await asyncio.to_thread(proxy.stop)
        pstats.Stats(str(output)).sort_stats("tottime").print_stats(LINES)
    for server in servers:
        server.close()
