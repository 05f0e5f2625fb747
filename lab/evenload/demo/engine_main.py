"""The command line of the simulated engines: `python -m evenload.demo.engine_server --help`."""

import argparse
import asyncio
import signal
from collections.abc import Sequence

import uvloop

from evenload.demo.engine_server import EngineFleet, EngineServer
from evenload.sim.presets import PRESETS
from evenload.sim.provider import ProviderModel


def parser() -> argparse.ArgumentParser:
    """All options, with what they mean."""
    options = argparse.ArgumentParser(
        prog="python -m evenload.demo.engine_server",
        description="Simulated LLM inference engines over HTTP, shaped like vLLM, with faults on demand.",
    )
    add = options.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add(
        "--port",
        type=int,
        default=9100,
        help="port of the first engine, the others follow; 0: any (default %(default)s)",
    )
    add("--count", type=int, default=1, help="number of engines in this process (default %(default)s)")
    add("--preset", default="h100-8b", choices=list(PRESETS), help="what they cost (default %(default)s)")
    add("--speed", type=float, default=1.0, help="engine time per wall time (default %(default)s)")
    add("--name", default="engine", help="engines are called NAME-0, NAME-1, ... (default %(default)s)")
    add("--model", default="demo-8b", help="model they serve (default %(default)s)")
    add("--seed", type=int, default=0, help="for ids, texts, open output lengths and fault draws (default %(default)s)")
    add("--queue-max", type=int, default=None, help="most waiting requests, beyond it 503 (default: unbounded)")
    add("--provider-ttft-ms", type=float, default=None, help="be providers without gauges, with this median TTFT")
    add(
        "--provider-sigma",
        type=float,
        default=0.35,
        help="spread of a provider's log-normal TTFT (default %(default)s)",
    )
    add("--provider-rps", type=float, default=None, help="a provider's rate limit, beyond it 429 (default: none)")
    return options


def fleet_of(arguments: argparse.Namespace) -> EngineFleet:
    """The engines that the options describe.

    Raises:
        ValueError: A value makes no sense.
    """
    if arguments.count < 1:
        raise ValueError(f"--count must be at least 1, got {arguments.count}")
    provider = None
    if arguments.provider_ttft_ms is not None:
        provider = ProviderModel(
            ttft_ms=arguments.provider_ttft_ms, sigma=arguments.provider_sigma, rate_limit_rps=arguments.provider_rps
        )
    return EngineFleet(
        [
            EngineServer(
                host=arguments.host,
                port=arguments.port + index if arguments.port else 0,
                preset=arguments.preset,
                speed=arguments.speed,
                name=f"{arguments.name}-{index}",
                model=arguments.model,
                seed=arguments.seed,
                queue_max=arguments.queue_max,
                provider=provider,
            )
            for index in range(arguments.count)
        ]
    )


async def serve(fleet: EngineFleet) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await fleet.start()
    for engine in fleet.engines:
        print(f"{engine.name} {engine.url} {engine.spec.preset.name}", flush=True)
    print("ready", flush=True)
    await stop.wait()
    await fleet.stop()


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    options = parser()
    arguments = options.parse_args(argv)
    try:
        fleet = fleet_of(arguments)
    except ValueError as error:
        options.error(str(error))
    try:
        uvloop.run(serve(fleet))
    except OSError as error:
        options.exit(1, f"cannot listen: {error}\n")
