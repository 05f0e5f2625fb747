"""Evenload before two real vLLM engines, step by step: `make real-engine`.

It installs vLLM for the CPU (6 GB) and makes a tiny random model, once; starts two engines, Kafka, a scorer, a
collector and a router on loopback; and then asks, loads, fills, kills and stops. Each step says what was expected and
what was seen. Takes 10 to 30 minutes; Ctrl-C stops everything that it started.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import anthropic
import openai

from evenload.broker import BrokerError
from evenload.cli.stopping import unwinding
from evenload.cli.supervise import ChildFailedError
from evenload.schemas import __version__
from tools.peers import Uninstallable

from . import install, steps_ill, steps_well
from .engine import RealEngine
from .front import Front
from .record import Record, Results
from .world import Check, World

Step = Callable[[World], Awaitable[list[Check]]]
STEPS: dict[str, Step] = {
    "ready": steps_well.ready,
    "clients": steps_well.clients,
    "detour": steps_well.detour,
    "tool": steps_well.tool,
    "saturated": steps_ill.saturated,
    "drained": steps_ill.drained,
    "stopped": steps_ill.stopped,
    "killed": steps_ill.killed,
}
STEP_S = 1200.0  # those that start an engine again take minutes
PAGE = Path(__file__).parents[2] / "docs" / "real-engines.md"
_MARKS = {"PASS": "holds", "FAIL": "**does not hold**", "SEEN": ""}
# What a step raises where an engine, a client or a tool does something else than it should.
FAILURES = (
    *(AssertionError, LookupError, OSError, ValueError, ChildFailedError, Uninstallable),
    *(subprocess.SubprocessError, openai.OpenAIError, anthropic.AnthropicError),
)
BEGIN, END = "<!-- seen: made by make real-engine -->", "<!-- end of seen -->"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps; 0 if all held, 1 if not, 2 if they could not be made."""
    options = argparse.ArgumentParser(
        prog="python -m tests.real_engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("steps", nargs="*", help=f"of {', '.join(STEPS)}; all without any")
    options.add_argument(
        "--record", type=Path, default=install.FOLDER / "record", help="folder for what was said (default %(default)s)"
    )
    options.add_argument(
        "--write", action="store_true", help=f"put what was seen last in each step into docs/{PAGE.name}"
    )
    arguments = options.parse_args(argv)
    if unknown := set(arguments.steps).difference(STEPS):
        options.error(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    record = Record(arguments.record)
    try:
        found = run(arguments.steps or list(STEPS), record)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except (Uninstallable, ChildFailedError, BrokerError) as error:
        print(f"real-engine: {error}", file=sys.stderr)
        return 2
    if arguments.write:
        write(record.results())
    words = Counter(check.word for checks in found.values() for check in checks)
    print(f"\n{words['PASS']} hold, {words['FAIL']} do not", flush=True)
    return 1 if words["FAIL"] else 0


def run(steps: Sequence[str], record: Record) -> dict[str, list[Check]]:
    """Start everything, make the steps, stop everything."""
    install.vllm()
    install.model()
    logs = install.FOLDER / "logs"
    with ExitStack() as stack:
        roomy = RealEngine("roomy", ["--shutdown-timeout", str(steps_ill.DRAIN_S)], logs)
        tight = RealEngine("tight", ["--max-num-queued-reqs", str(steps_ill.UNFINISHED_MAX)], logs)

        def hurry() -> None:
            roomy.child.stop_now()
            tight.child.stop_now()

        stack.enter_context(unwinding(hurry))
        for engine in (roomy, tight):
            stack.callback(engine.close)
            engine.start()
        print(f"two engines are starting, which takes minutes; their logs are in {logs} ...", flush=True)
        for engine in (roomy, tight):
            print(f"  {engine.name} answers after {engine.wait():.0f} s", flush=True)
        print("Kafka, a scorer, a collector and a router are starting ...", flush=True)
        front = stack.enter_context(Front([roomy, tight], install.FOLDER))
        world = World(roomy, tight, front, record, install.FOLDER)
        return {name: _made(name, world) for name in steps}


def _made(name: str, world: World) -> list[Check]:
    """Make one step and say what came out; whatever it raises is a check that does not hold."""
    step = STEPS[name]
    print(f"\n{name}: {(step.__doc__ or '').strip()}", flush=True)
    began_s = time.monotonic()
    try:
        checks = asyncio.run(_bounded(step, world))
    except FAILURES as error:
        checks = [Check("the step can be made", f"{type(error).__name__}: {error}", False)]
    world.record.result(name, [(check.expected, check.seen, check.word) for check in checks])
    for check in checks:
        print(f"  {check.word}  {check.expected}\n        {check.seen}", flush=True)
    print(f"  ({time.monotonic() - began_s:.0f} s)", flush=True)
    return checks


async def _bounded(step: Step, world: World) -> list[Check]:
    async with asyncio.timeout(STEP_S):
        checks = await world.whole()
        if step is not steps_well.ready:  # which says how long it takes
            await world.in_use()
        return [*checks, *await step(world)]


def write(results: Results) -> None:
    """Put the table between the marks of the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{PAGE}: the marks {BEGIN!r} and {END!r} are not there"
    said = f"Evenload {__version__}, vLLM {install.VLLM}.\n\n{origin(results)}\n\n{table(results)}"
    PAGE.write_text(f"{before}{BEGIN}\n{said}\n{END}{after}", encoding="utf-8")


def origin(results: Results) -> str:
    """Return in words which run each step is of."""
    lines = []
    for run in sorted({result.run for result in results.values()}):
        steps = [name for name in STEPS if name in results and results[name].run == run]
        loads = [results[name].load for name in steps]
        lines.append(f"- {', '.join(steps)}: one run, begun {run} UTC; load {min(loads):g} to {max(loads):g}")
    missing = [name for name in STEPS if name not in results]
    return "\n".join([*lines, *([f"- {', '.join(missing)}: not run"] if missing else [])])


def table(results: Results) -> str:
    """Return what came out of the steps as a table in Markdown."""
    rows = ["| step | expected | seen | |", "|---|---|---|---|"]
    for name in STEPS:
        for expected, seen, word in results[name].checks if name in results else ():
            cells = (name, expected, seen, _MARKS[word])
            rows.append("| " + " | ".join(" ".join(cell.replace("|", "/").split()) for cell in cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
