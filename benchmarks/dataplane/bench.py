"""Proxies before the same engine: `python benchmarks/dataplane/bench.py [peers | SECTION ...] [--only NAMES] [--json]`.

Sections: requests, chunks, latency, first, idle, many; without one, all of them. `peers` installs what is compared
with. README.md says what each measures. Every round measures each proxy once, one after the other, so that a ratio
compares what the machine was at one moment; figures are medians over rounds with the extremes in brackets.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import uvloop

from benchmarks.dataplane import measure, profiling
from benchmarks.dataplane.engine import Engine
from benchmarks.dataplane.proxies import NAMES, OURS, Proxy, describe, install_peers
from benchmarks.pipeline import machine
from benchmarks.pipeline.stack import Case, case, kafka

LOAD_CORE, PROXY_CORE = 0, 1
REFERENCE = "vllm-router"

# Section: what it is, how it is measured, the figure that ratios are made of, what is taken off that figure first.
SECTIONS: dict[str, tuple[str, measure.Measure, str, str]] = {
    "requests": ("plain requests, closed loop of 64 clients", measure.requests, "cpu_us", ""),
    "chunks": ("100 streams of 50 frames/s", measure.chunks, "cpu_s_per_million", ""),
    "latency": ("plain requests at 100/s (slow: 5/s)", measure.latency, "p50_ms", "none"),
    "first": ("first content of streams, 100 begun per second (slow: 5/s)", measure.first, "p50_ms", "none"),
    "idle": ("500 silent streams (slow: 25)", measure.idle, "kb_per_stream", ""),
    "many": ("2,000 streams of 2 frames/s (slow: 100)", measure.many, "cpu_s_per_million", ""),
}

Rounds = dict[str, list[measure.Row]]


def say(text: str) -> None:
    """Tell progress."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def started(proxies: list[Proxy]) -> Iterator[list[Proxy]]:
    """Start proxies; those that do not come up are marked as missing with the reason."""
    with contextlib.ExitStack() as stack:
        for proxy in proxies:
            if proxy.missing:
                continue
            say(f"starting {proxy.name} ...")
            stack.callback(proxy.stop)
            try:
                proxy.start(PROXY_CORE)
            except (OSError, RuntimeError) as error:
                proxy.missing = str(error)
        yield proxies


async def rounds_of(
    sections: list[str], names: list[str], count: int, owner: Case, python: str
) -> tuple[dict[str, Rounds], dict[str, str]]:
    """Measure; returns per section and proxy one row per round, and what could not be measured and why."""
    engine = Engine()
    servers = await engine.start()
    proxies = [describe(name, engine.ports, owner.kafka, owner.prefix, python) for name in ("none", *names)]
    found: dict[str, Rounds] = {section: {} for section in sections}
    # Starting waits for answers of the engine, which lives on this loop.
    with contextlib.ExitStack() as stack:
        context = started(proxies)
        await asyncio.to_thread(stack.enter_context, context)
        await asyncio.sleep(2.0)
        for number in range(count):
            for section in sections:
                say(f"round {number + 1} of {count}: {section} (load {machine.load()}) ...")
                for proxy in proxies:
                    if not proxy.missing and not (section in ("idle", "many") and proxy.name == "none"):
                        row = await SECTIONS[section][1](proxy, engine)
                        found[section].setdefault(proxy.name, []).append(row)
                        await asyncio.sleep(0.3)
    for server in servers:
        server.close()
    return found, {proxy.name: proxy.missing for proxy in proxies if proxy.missing}


def ratios(rounds: Rounds, figure: str, base: str) -> dict[str, list[float]]:
    """Return per proxy its figure by the reference's, round by round; `base` is a proxy whose figure is taken off."""
    off = [row[figure] for row in rounds[base]] if base else []
    values = {
        name: [row[figure] - (off[number] if base else 0.0) for number, row in enumerate(rows)]
        for name, rows in rounds.items()
        if name != "none"
    }
    reference = values.get(REFERENCE)
    if not reference:
        return {}
    return {name: [v / r for v, r in zip(of, reference, strict=True) if r > 0] for name, of in values.items()}


def print_section(what: str, rounds: Rounds, by_proxy: dict[str, list[float]], missing: dict[str, str]) -> None:
    """Print a line per proxy: medians, extremes in brackets, and the ratio to the reference."""
    figures = list(dict.fromkeys(figure for rows in rounds.values() for figure in rows[0]))
    print(f"\n{what}\n{'':18}" + "".join(f"{name:>26}" for name in figures) + f"{'x ' + REFERENCE:>26}")
    for name, rows in rounds.items():
        cells = [_cell([row[figure] for row in rows if figure in row]) for figure in figures]
        print(f"{name:<18}" + "".join(f"{cell:>26}" for cell in [*cells, _cell(by_proxy.get(name, []))]))
    for name, reason in missing.items():
        print(f"{name:<18}not measured: {reason}")


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    middle = _number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({_number(min(values))}..{_number(max(values))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def main() -> None:
    """Measure and print tables, or JSON."""
    parser = argparse.ArgumentParser(description="Proxies before the same engine")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"peers, or of {', '.join(SECTIONS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(NAMES)}", default=",".join(NAMES))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bootstrap", help="a Kafka that runs already; else the embedded one is started")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter of Evenload's router, of this minor version"
    )
    parser.add_argument("--profile", action="store_true", help="profile Evenload in the given sections instead")
    options = parser.parse_args()
    if options.sections == ["peers"]:
        problems = install_peers(say)
        for name, reason in problems.items():
            print(f"{name} could not be installed: {reason}")
        sys.exit(1 if problems else 0)
    names = options.only.split(",")
    if unknown := [*(set(options.sections) - SECTIONS.keys()), *(set(names) - set(NAMES))]:
        parser.error(f"no such section or proxy: {', '.join(sorted(unknown))}")
    sections = options.sections or list(SECTIONS)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.sched_setaffinity(0, {LOAD_CORE})  # Kafka and the scorer, our children, stay there too
    with kafka(options.bootstrap) as where, case(where) as owner, owner.worker() as scorer:
        scorer.wait_ready()
        if options.profile:
            wanted = {section: SECTIONS[section][1] for section in sections}
            uvloop.run(profiling.run(wanted, OURS[0], owner))
            return
        found, missing = uvloop.run(rounds_of(sections, names, options.rounds, owner, options.python))
    by_proxy = {section: ratios(found[section], *SECTIONS[section][2:]) for section in sections}
    if options.json:
        about = {"machine": machine.describe(), "load": machine.load(), "missing": missing}
        print(json.dumps({**about, "sections": found, f"ratios_to_{REFERENCE}": by_proxy}, indent=1))
        return
    print(" ".join(f"{key}={value}" for key, value in machine.describe().items()) + f" load={machine.load()}")
    for section in sections:
        print_section(SECTIONS[section][0], found[section], by_proxy[section], missing)


if __name__ == "__main__":
    main()
