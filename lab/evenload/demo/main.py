"""`evenload demo`: start everything, play the story, replay the faults on the baselines, sum up, stop everything."""

import json
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evenload.cli.errors import CommandError
from evenload.cli.stopping import unwinding
from evenload.demo import arrivals, record
from evenload.demo.checks import Check, Run, judge
from evenload.demo.director import Director
from evenload.demo.lane import ENGINES, MODEL, Lane, Plan
from evenload.demo.live import LiveView, PlainView
from evenload.demo.stack import FOLDER, LogFolder, Stack, demo_folder, free_bootstrap
from evenload.demo.story import FULL, QUICK, Step, baseline, expected_seconds, story
from evenload.demo.summary import HEADERS, TITLE, Summary, cells, figures, markdown, verdict
from evenload.demo.workload import Trace, TraceError
from evenload.settings import Settings

PRESET: Final = "l40s-8b"
SLACK_S: Final = 60.0  # of arrivals beyond the script's own length
STDOUT: Final = Path("-")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says.

    Attributes:
        trace: Arrivals and sizes; None is the shipped sample.
        rate_rps: Mean arrivals per second and fleet.
        seed: Of everything that is drawn.
        speed: Of the engines; None fits them to the trace.
        json_path: Where to write the summary as data; `-` is stdout.
        markdown_path: Where to write it as markdown.
        quick: A shortened story, for tests.
        keep: Keep everything running afterwards.
    """

    trace: Path | None = None
    rate_rps: float = 18.0
    seed: int = 1
    speed: float | None = None
    json_path: Path | None = None
    markdown_path: Path | None = None
    quick: bool = False
    keep: bool = False


def run(settings: Settings, options: Options) -> int:
    """Run the demo.

    Returns:
        0 if the story held, else 1.

    Raises:
        CommandError: The trace or a value cannot be used, or another demo runs here.
        BrokerError, ChildFailedError: Something did not start, or ended.
        KeyboardInterrupt: Ctrl-C; everything has been stopped.
    """
    pace = QUICK if options.quick else FULL
    trace = _workload(options, expected_seconds(story(pace)) + SLACK_S)
    # Data on stdout must stay alone there.
    out = sys.stderr if options.json_path == STDOUT else sys.stdout
    view: LiveView | PlainView = LiveView(Console(file=out)) if out.isatty() else PlainView(out)
    with demo_folder(FOLDER) as folder:
        plan = Plan(
            folder=folder,
            arrivals=arrivals.write(trace, folder / "arrivals.csv"),
            preset=PRESET,
            speed=options.speed or arrivals.fitting_speed(trace, PRESET),
            seed=options.seed,
            bootstrap=free_bootstrap(),
            log_level=settings.log.level,
            log=LogFolder(folder / "logs").write,
        )
        stack = Stack(plan, settings.broker.memory_mb, view.say)
        with unwinding(hurry=stack.kill), stack:
            summary = _play(stack, view, trace, options)
            _write(summary, options, out)
            if options.keep:
                _keep(stack, out)
            view.say("stopping everything ...")
    return 0 if summary.held else 1


def _workload(options: Options, seconds: float) -> Trace:
    if options.speed is not None and not options.speed > 0:
        raise CommandError(f"--speed must be positive, got {options.speed:g}")
    try:
        return arrivals.prepare(options.trace, options.rate_rps, options.seed, seconds)
    except (TraceError, ValueError) as error:
        raise CommandError(str(error)) from error


def _play(stack: Stack, view: LiveView | PlainView, trace: Trace, options: Options) -> Summary:
    pace = QUICK if options.quick else FULL
    start_s = time.monotonic()
    lane = stack.start_story()
    with view:
        (told,) = direct(stack, view, [lane], story(pace))
    view.say("the story is told; now the same faults for the baselines")
    baselines = stack.start_baselines()
    with view:
        compared = direct(stack, view, baselines, baseline(pace))
    rows = [figures(each.name, run) for each, run in zip([lane, *baselines], [told, *compared], strict=True)]
    seconds = time.monotonic() - start_s
    return Summary(judge(told), rows, _notes(stack, trace, options, seconds), seconds)


def direct(stack: Stack, view: LiveView | PlainView, lanes: Sequence[Lane], script: Sequence[Step]) -> list[Run]:
    """Play a script over lanes with load on them; what it left behind, lane by lane."""
    for lane in lanes:
        lane.start_load()
    view.lanes = lanes
    director = Director(lanes, stack.broker, view)
    with closing(director):
        director.play(script)
    for lane in lanes:
        lane.end_load()
    for lane in lanes:
        lane.stop_load()
        lane.observe()
    runs = [_run_of(lane, director) for lane in lanes]
    for lane, run in zip(lanes, runs, strict=True):
        record.write(run, stack.plan.folder / f"record-{lane.name}.jsonl")
    return runs


def _run_of(lane: Lane, director: Director) -> Run:
    assert lane.load is not None
    return Run(
        results=tuple(lane.load.results),
        marks=director.marks_of(lane),
        samples=tuple(lane.samples),
        engines=lane.engines.names,
        routers=lane.routers,
        skipped=int(lane.load.counts.get("skipped", 0)),
    )


def _notes(stack: Stack, trace: Trace, options: Options, seconds: float) -> list[str]:
    plan = stack.plan
    lanes = [lane for lane in (stack.story, *stack.baselines) if lane is not None]
    late_ms = max((lane.load.counts.get("late_ms_max", 0.0) for lane in lanes if lane.load), default=0.0)
    notes = [
        f"load: {'; '.join(trace.notes)}; {options.rate_rps:g} requests/s per fleet, open loop, seed {options.seed}",
        "TTFT counts from the scheduled arrival; refused attempts were tried elsewhere; streams that were on the "
        "killed router are not among the lost",
        f"each fleet: {ENGINES} simulated engines ({plan.preset}, speed {plan.speed:g}); evenload has 2 routers, "
        "the baselines one each, and they replay the two instance faults only",
        f"the generator was at most {late_ms:.0f} ms late; everything took {seconds:.0f} s on this machine",
    ]
    return (["SHORTENED story (--quick): the figures mean little", *notes]) if options.quick else notes


def _write(summary: Summary, options: Options, out: TextIO) -> None:
    console = Console(file=out, width=None if out.isatty() else 140)
    console.print()
    console.print(_table(summary))
    console.print()
    for check in summary.checks:
        console.print(check_line(check))
    for note in summary.notes:
        console.print(Text(f"- {note}", style="dim"))
    if options.markdown_path is not None:
        options.markdown_path.write_text(markdown(summary), encoding="utf-8")
    if options.json_path is not None:
        text = json.dumps(summary.document(), indent=2, ensure_ascii=False)
        if options.json_path == STDOUT:
            print(text)
        else:
            options.json_path.write_text(text + "\n", encoding="utf-8")
    console.print(Text("The story held." if summary.held else "The story did NOT hold.", style="bold"))


def _table(summary: Summary) -> Table:
    table = Table(title=TITLE, title_justify="left", show_edge=False)
    for index, header in enumerate(HEADERS):
        table.add_column(header, justify="right" if index else "left", no_wrap=index == 0)
    for row in summary.figures:
        table.add_row(*cells(row))
    return table


def check_line(check: Check) -> Text:
    """A promise with its verdict and its figure."""
    style = "green" if check.held else "bold red"
    return Text.assemble((f"{verdict(check):>8}", style), f"  {check.promise}\n          {check.figure}")


def _keep(stack: Stack, out: TextIO) -> None:
    assert stack.story is not None
    for lane in (stack.story, *stack.baselines):
        for url in lane.routers:
            print(f"{lane.name:<18} {url}/fleet  {url}/metrics", file=out)
        print(f"{'':<18} engines at {', '.join(lane.engines.urls().values())}", file=out)
    print(
        f"Kafka at {stack.broker.bootstrap}; logs in {stack.plan.folder / 'logs'}\n"
        f"  curl {stack.story.routers[0]}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f'    -d \'{{"model": "{MODEL}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}\'\n'
        "Ctrl-C stops everything.",
        file=out,
        flush=True,
    )
    threading.Event().wait()
