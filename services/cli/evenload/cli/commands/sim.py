"""`evenload sim`."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from evenload.cli.apps import command_app
from evenload.cli.errors import EXIT_VERDICT, CommandError
from evenload.cli.options import Json
from evenload.cli.stopping import Terminated, unwinding
from evenload.cli.tables import print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenload.bench.grid import Cell
    from evenload.bench.main import Case, Request

app = command_app(no_args_is_help=True)

DEFAULT_TRACES = Path("../shared/traces")


def _traces(folder: Path) -> Path:
    """Refuse a folder that was named and is not there: stand-ins in its place would be a surprise."""
    if folder != DEFAULT_TRACES and not folder.is_dir():
        raise CommandError(f"--traces {folder}: no such folder")
    return folder


Traces = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        envvar="EVENLOAD_TRACES",
        callback=_traces,
        help="Public traces; without the default folder stand-ins by distribution are used.",
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Worker processes; 0 is one per core.")]
Seeds = Annotated[str, typer.Option(help="How many seeds (5), or which (1-10, 3,7).")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Do not use results kept in .evenload/sim.")]
Duration = Annotated[float | None, typer.Option(metavar="SECONDS", help="Simulated time, where it cuts off no fault.")]
Workload = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Requests of your own in place of the scenario's trace, rescaled to its rate: CSV with arrival_s, "
        "prompt_tokens and output_tokens, Azure's CSV, or Mooncake's JSON lines.",
    ),
]
Rate = Annotated[
    float | None, typer.Option(metavar="RPS", help="Mean requests per second, in place of the scenario's own rate.")
]
ArmOption = Annotated[
    Literal["equal", "bare", "both"],
    typer.Option(help="equal: every policy has the router's retries and exclusions; bare: none has."),
]
SEEDS_MAX = 10_000
QUIET_S = 60.0  # between two lines of progress where there is no terminal


@app.command()
def run(
    scenario: Annotated[str, typer.Argument(help="A name (s7-step), a family (S7), or the beginning of names (s1-u).")],
    *,
    policy: Annotated[list[str] | None, typer.Option("--policy", help="Repeatable; NAME or NAME:key=value,...")] = None,
    seeds: Seeds = "1",
    arm: ArmOption = "equal",
    duration: Duration = None,
    workload: Workload = None,
    rate: Rate = None,
    jobs: Jobs = 1,
    traces: Traces = DEFAULT_TRACES,
    as_json: Json = False,
) -> None:
    """Run a scenario anew and print every figure of each run, with the digest that the same commit must repeat."""
    from evenload.bench.main import Request, cells_json, compare

    request = Request(
        scenarios=(scenario,),
        policies=tuple(policy or ["least-connections"]),
        seeds=_seeds(seeds),
        arms=_arms(arm),
        duration_s=duration,
        workload=workload,
        rate_rps=rate,
        processes=jobs or os.cpu_count() or 1,
        traces=traces,
        keep=False,
    )
    cells = _run(request, compare)
    if as_json:
        print_json(cells_json(cells))
        return
    for cell in cells:
        typer.echo(f"{cell.case.scenario.name}: {cell.case.scenario.shows}")
        typer.echo(f"  policy {cell.case.policy}, seed {cell.case.seed}, arm {cell.case.arm}, workload {cell.source}")
        for name, value in cell.figures.items():
            typer.echo(f"  {name:<24} {value:>14.4f}")
        typer.echo(f"  digest {cell.digest}; {cell.took_s:.1f} s; replay: {cell.case.command}")
    _print_stand_ins(cells, traces)


@app.command()
def compare(
    *,
    grid: Annotated[
        Literal["quick", "core", "full"] | None,
        typer.Option(
            help="quick: 3 minutes, with bars of its own; core: what docs/benchmark.md shows; full: all, both arms. "
            "Without: all cells in one arm, narrowed by the options below."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The same as --grid quick.")] = False,
    scenarios: Annotated[str, typer.Option(help="Comma-separated names or families; others are left out.")] = "",
    policies: Annotated[
        str, typer.Option(help="In place of the grid's; separated by commas (semicolons with key=value,...).")
    ] = "",
    seeds: Annotated[
        str, typer.Option(help="How many seeds (5), or which (1-10, 3,7); the grid's own otherwise.")
    ] = "",
    arm: Annotated[
        Literal["equal", "bare", "both"] | None, typer.Option(help="As for `run`; the grid's own otherwise.")
    ] = None,
    duration: Duration = None,
    workload: Workload = None,
    rate: Rate = None,
    jobs: Jobs = 0,
    traces: Traces = DEFAULT_TRACES,
    fresh: Fresh = False,
    kept: Annotated[bool, typer.Option("--kept", help="Run nothing: show what .evenload/sim has.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells and what they will cost; run none.")
    ] = False,
    report: Annotated[Path | None, typer.Option(metavar="DIR", help="Write report.html and its plots there.")] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Markdown page; its plots go to a folder of its name.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare policies: medians over seeds, and the paired ratio to least-connections with a 95 % interval.

    Results are kept in .evenload/sim and taken up again, after Ctrl-C as well; an edit of a policy invalidates its own
    results only. With --quick, exit code 1 if one of its bars is missed.
    """
    from evenload.bench import main as bench

    if quick and grid not in {None, "quick"}:
        raise CommandError(f"--quick and --grid {grid} are two grids: give one")
    name = "quick" if quick else grid or "custom"
    request = bench.Request(
        plan=bench.PLANS[name],
        scenarios=tuple(filter(None, scenarios.split(","))),
        policies=tuple(filter(None, policies.split(";" if "=" in policies or ";" in policies else ","))),
        seeds=_seeds(seeds) if seeds else (),
        arms=_arms(arm) if arm else (),
        duration_s=duration,
        workload=workload,
        rate_rps=rate,
        processes=jobs or os.cpu_count() or 1,
        traces=traces,
        keep=not fresh,
        kept_only=kept,
    )
    if dry_run:
        _print_costs(request, as_json=as_json)
        return
    if report or write:
        _require_reports(report, write)
    cells = _run(request, bench.compare)
    if not cells:
        raise CommandError("nothing is kept of these cells")
    verdicts = bench.judge(cells)
    missed = _missed(cells) if name == "quick" else []
    if as_json:
        print_json(bench.cells_json(cells) | {"bars": bench.verdicts_json(verdicts), "bars_missed": missed})
    else:
        _print_tables(cells, traces)
        if name != "quick":
            ran = [row for row in bench.verdict_rows(verdicts) if row["outcome"] != "not run"]
            typer.echo("\nBars" if ran else "\nNo bar is about these cells alone.")
            for line in bench.lines(ran, left=("bar", "outcome", "note")):
                typer.echo(line)
    for path in bench.write_reports(cells, name, report, write):
        typer.echo(f"wrote {path}", err=True)
    for line in missed:
        typer.echo(f"bar missed: {line}", err=True)
    if missed:
        raise typer.Exit(EXIT_VERDICT)


def _require_reports(report: Path | None, write: Path | None) -> None:
    """Fail before the work, not after it."""
    from evenload.bench import main as bench

    bench.require_plots()
    try:
        bench.require_folders(report, write)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _missed(cells: "list[Cell]") -> list[str]:
    """Return the bars of the quick comparison that are missed; say how many there were."""
    from evenload.bench.main import check

    results = check(cells)
    if not results:
        raise CommandError("none of the quick comparison's bars is about these cells")
    missed = [str(result) for result in results if not result.holds]
    typer.echo(f"{len(results) - len(missed)} of the quick comparison's {len(results)} bars hold", err=True)
    return missed


def _print_costs(request: "Request", *, as_json: bool) -> None:
    from evenload.bench import main as bench

    try:
        rows = bench.estimate(request)
    except ValueError as error:
        raise CommandError(str(error)) from None
    cpu_s = sum(row.cpu_s for row in rows)
    minutes = cpu_s / request.processes / 60.0
    if as_json:
        print_json({"scenarios": bench.costs_json(rows), "cpu_s": cpu_s, "processes": request.processes})
        return
    for line in bench.lines(bench.cost_rows(rows)):
        typer.echo(line)
    typer.echo(
        f"{sum(row.runs for row in rows)} runs, {sum(row.kept for row in rows)} kept; {cpu_s:.0f} CPU seconds to go: "
        f"{minutes:.0f} minutes with {request.processes} processes on cores that do nothing else"
    )


def _print_tables(cells: "list[Cell]", traces: Path) -> None:
    from evenload.bench import main as bench

    for name, group in bench.by_scenario(cells).items():
        typer.echo(f"\n{name}: {group[0].case.scenario.shows} [{group[0].source}]")
        for line in bench.lines([bench.printable(row) for row in bench.scenario_rows(group)]):
            typer.echo(line)
    _print_stand_ins(cells, traces)


def _print_stand_ins(cells: "list[Cell]", traces: Path) -> None:
    from evenload.bench.main import missing_traces

    note = missing_traces(traces, cells)
    if note:
        typer.echo(f"\n{note}", err=True)


@app.command("list")
def list_(traces: Traces = DEFAULT_TRACES, as_json: Json = False) -> None:
    """List the scenarios."""
    from evenload.bench.main import lines, listing

    rows = listing(traces)
    if as_json:
        print_json(rows)
        return
    for line in lines([{name: str(value) for name, value in row.items()} for row in rows]):
        typer.echo(line)


def _run(request: "Request", runner: "Callable[[Request, Callable[[Cell], None]], list[Cell]]") -> "list[Cell]":
    try:
        cases = request.cases()
    except ValueError as error:
        raise CommandError(str(error)) from None
    longer = request.longer(cases)
    if longer:
        names = ", ".join(longer)
        typer.echo(f"--duration would cut off a fault or what is measured, and is not used in {names}", err=True)
    count = 0
    with _progress(cases) as show:

        def done(cell: "Cell") -> None:
            nonlocal count
            count += 1
            show(cell)

        with unwinding(lambda: os._exit(130)):
            try:
                return runner(request, done)
            except (KeyboardInterrupt, Terminated):
                how = "the same command goes on from there" if request.keep else "nothing was kept"
                typer.echo(f"stopped: {count} of {len(cases)} runs are done; {how}", err=True)
                raise KeyboardInterrupt from None


@contextmanager
def _progress(cases: "Sequence[Case]") -> "Iterator[Callable[[Cell], None]]":
    """A bar on a terminal, a line a minute elsewhere; it moves by what cases cost, so that the time left is right."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from evenload.bench.main import case_s

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.fields[count]} of {task.fields[cases]}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=sum(map(case_s, cases)), count=0, cases=len(cases))
        count, said_s = 0, time.monotonic()

        def done(cell: "Cell") -> None:
            nonlocal count, said_s
            count += 1
            what = f"{cell.case.scenario.name} {cell.case.policy} seed {cell.case.seed}"
            bar.update(task, advance=case_s(cell.case), count=count, description=what)
            if not console.is_terminal and time.monotonic() - said_s > QUIET_S:
                said_s = time.monotonic()
                typer.echo(
                    f"{count} of {len(cases)} runs, {bar.tasks[task].percentage:.0f} % of the work: {what}", err=True
                )

        yield done


def _seeds(text: str) -> tuple[int, ...]:
    """Read `5` (1 to 5; the single seed 1 for `1`), `3-6`, or `2,5,9`.

    Raises:
        CommandError: it is none of these, or nobody could run as many.
    """
    try:
        if "," in text:
            found: Sequence[int] = sorted({int(part) for part in text.split(",") if part})
        else:
            first, dash, last = text.partition("-")
            found = range(int(first), int(last) + 1) if dash else range(1, int(text) + 1)
    except ValueError:
        found = ()
    if not found or found[0] < 0 or found[-1] - found[0] >= SEEDS_MAX:
        raise CommandError(
            f"--seeds {text!r}: give a count (5), a range (1-10) or a list (3,7), within {SEEDS_MAX} of each other"
        )
    return tuple(found)


def _arms(arm: str) -> "tuple[Literal['equal', 'bare'], ...]":
    return ("equal", "bare") if arm == "both" else ("bare",) if arm == "bare" else ("equal",)
