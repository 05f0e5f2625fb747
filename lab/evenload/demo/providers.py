"""`evenload demo --story providers`: six simulated providers over HTTP behind one router, one of them slows and heals.

Everything is real but the providers: Kafka, scorer, router and load are processes of their own. The pool is left to its
default policy, which is `peak-ewma-decay` for providers only.
"""

import json
import math
import sys
from typing import Final, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evenload.cli.stopping import unwinding
from evenload.demo import arrivals
from evenload.demo.checks import Check
from evenload.demo.lane import Plan
from evenload.demo.live import LiveView, PlainView
from evenload.demo.main import PRESET, STDOUT, Options, check_line, direct
from evenload.demo.providers_story import FULL, QUICK, Figures, figures, judge, script, workload
from evenload.demo.stack import FOLDER, LogFolder, Stack, demo_folder, free_bootstrap
from evenload.demo.story import expected_seconds
from evenload.settings import Settings

SLACK_S: Final = 30.0  # of arrivals beyond the script's own length


def run(settings: Settings, options: Options) -> int:
    """Run the story.

    Returns:
        0 if it held, else 1.

    Raises:
        CommandError: Another demo runs here.
        BrokerError, ChildFailedError: Something did not start, or ended.
        KeyboardInterrupt: Ctrl-C; everything has been stopped.
    """
    steps = script(QUICK if options.quick else FULL)
    out = sys.stderr if options.json_path == STDOUT else sys.stdout
    view: LiveView | PlainView = LiveView(Console(file=out)) if out.isatty() else PlainView(out)
    with demo_folder(FOLDER) as folder:
        trace = workload(expected_seconds(steps) + SLACK_S, options.seed)
        plan = Plan(
            folder=folder,
            arrivals=arrivals.write(trace, folder / "arrivals.csv"),
            preset=PRESET,
            speed=1.0,
            seed=options.seed,
            bootstrap=free_bootstrap(),
            log_level=settings.log.level,
            log=LogFolder(folder / "logs").write,
        )
        stack = Stack(plan, settings.broker.memory_mb, view.say)
        with unwinding(hurry=stack.kill), stack:
            lane = stack.start_providers()
            with view:
                (played,) = direct(stack, view, [lane], steps)
            found = figures(played)
            checks = judge(found)
            _write(found, checks, trace.notes, options, out)
            view.say("stopping everything ...")
    return 0 if all(check.held for check in checks) else 1


def _write(found: Figures, checks: list[Check], notes: tuple[str, ...], options: Options, out: TextIO) -> None:
    console = Console(file=out, width=None if out.isatty() else 140)
    console.print()
    console.print(_table(found))
    console.print()
    for check in checks:
        console.print(check_line(check))
    for note in notes:
        console.print(Text(f"- {note}; TTFT counts from the scheduled arrival", style="dim"))
    held = all(check.held for check in checks)
    document = {
        "story": "providers",
        "held": held,
        "quick": options.quick,
        "figures": found.document(),
        "checks": [{"key": check.key, "held": check.held, "figure": check.figure} for check in checks],
    }
    if options.markdown_path is not None:
        options.markdown_path.write_text(_markdown(found, checks), encoding="utf-8")
    if options.json_path == STDOUT:
        print(json.dumps(document, indent=2))
    elif options.json_path is not None:
        options.json_path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(Text("The story held." if held else "The story did NOT hold.", style="bold"))


def _rows(found: Figures) -> list[tuple[str, float, float]]:
    return [
        ("all healthy", found.healthy_p50_ms, found.healthy_p99_ms),
        ("one slow", found.slow_p50_ms, found.slow_p99_ms),
        ("one slow, from 1 s on", found.slow_p50_ms, found.slow_p99_from_1s_ms),
        ("healed and back", float("nan"), found.afterwards_p99_ms),
    ]


def _cell(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0f}"


def _table(found: Figures) -> Table:
    table = Table(title="TTFT of all requests, ms", title_justify="left", show_edge=False)
    for index, header in enumerate(("while", "p50", "p99")):
        table.add_column(header, justify="right" if index else "left")
    for name, p50_ms, p99_ms in _rows(found):
        table.add_row(name, _cell(p50_ms), _cell(p99_ms))
    return table


def _markdown(found: Figures, checks: list[Check]) -> str:
    lines = ["| TTFT, ms | p50 | p99 |", "|---|---:|---:|"]
    lines += [f"| {name} | {_cell(p50_ms)} | {_cell(p99_ms)} |" for name, p50_ms, p99_ms in _rows(found)]
    lines += ["", *(f"- {'held' if check.held else 'NOT held'}: {check.promise}: {check.figure}" for check in checks)]
    return "\n".join(lines) + "\n"
