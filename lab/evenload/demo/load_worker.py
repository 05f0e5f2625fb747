"""The load generator as a process of its own, so that neither the view nor the story delays an arrival.

    python -m evenload.demo.load_worker --arrivals FILE --model NAME --router URL --router URL

It writes JSON lines: `{"start_s": ...}` (monotonic clock of the machine), one list per result in the order of
`Result`'s fields, and at the end the generator's counts. SIGTERM stops the arrivals; open streams may finish.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from random import Random

import uvloop

from evenload.demo.load import LoadGenerator, Result
from evenload.demo.workload import TraceError, read_trace


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    options = argparse.ArgumentParser(prog="python -m evenload.demo.load_worker", description="Send a workload.")
    options.add_argument("--arrivals", type=Path, required=True, help="a trace, sent as it is")
    options.add_argument("--model", required=True, help="model asked for")
    options.add_argument("--router", action="append", required=True, help="base URL; several are used in turn")
    arguments = options.parse_args(argv)
    try:
        uvloop.run(_send(arguments.arrivals, arguments.model, arguments.router))
    except (TraceError, ValueError) as error:
        options.error(str(error))


async def _send(path: Path, model: str, routers: Sequence[str]) -> None:
    generator = LoadGenerator(routers, model, on_result=_tell)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, generator.stop)
    arrivals = read_trace(path, Random(0)).arrivals
    _print({"start_s": loop.time()})
    await generator.run(arrivals)
    counts = ("sent", "failovers", "skipped", "late_ms_max")
    _print({name: getattr(generator, name) for name in counts})


def _tell(result: Result) -> None:
    _print(astuple(result))


def _print(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
