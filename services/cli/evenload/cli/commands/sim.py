"""`evenload sim`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from evenload.cli.apps import command_app
from evenload.cli.errors import EXIT_VERDICT, CommandError
from evenload.cli.options import Json
from evenload.cli.tables import print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenload.bench.grid import Cell
    from evenload.bench.main import Request

app = command_app(no_args_is_help=True)

Traces = Annotated[
    Path, typer.Option(metavar="DIR", envvar="EVENLOAD_TRACES", help="Public traces; stand-ins are used without them.")
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Worker processes; 0 is one per core.")]
Seeds = Annotated[str, typer.Option(help="How many seeds (5), or which (1-10, 3,7).")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Do not use results kept in .evenload/sim.")]
Duration = Annotated[float | None, typer.Option(metavar="SECONDS", help="Simulated time of cells without faults.")]
ArmOption = Annotated[
    Literal["equal", "bare", "both"],
    typer.Option(help="equal: every policy has the router's retries and exclusions; bare: none has."),
]
DEFAULT_TRACES = Path("../shared/traces")


@app.command()
def run(
    scenario: Annotated[str, typer.Argument(help="A name (s7-step), a family (S7), or the beginning of names (s1-u).")],
    *,
    policy: Annotated[list[str] | None, typer.Option("--policy", help="Repeatable; NAME or NAME:key=value,...")] = None,
    seeds: Seeds = "1",
    arm: ArmOption = "equal",
    duration: Duration = None,
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


@app.command()
def compare(
    *,
    scenarios: Annotated[str, typer.Option(help="Comma-separated names or families; all by default.")] = "",
    policies: Annotated[
        str, typer.Option(help="Separated by commas (semicolons with key=value,...); all and the oracle by default.")
    ] = "",
    seeds: Seeds = "10",
    arm: ArmOption = "equal",
    duration: Duration = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A short cell of most families, two seeds, few policies.")
    ] = False,
    jobs: Jobs = 0,
    traces: Traces = DEFAULT_TRACES,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Compare policies: medians over seeds, and the paired ratio to least-connections with a 95 % interval.

    Results are kept in .evenload/sim and taken up again; an edit of a policy invalidates its own results only. With
    --quick, exit code 1 if a bar of `evenload.bench.bars` is broken.
    """
    from evenload.bench import main as bench

    processes = jobs or os.cpu_count() or 1
    chosen = tuple(filter(None, policies.split(";" if "=" in policies or ";" in policies else ",")))
    if quick:
        request = bench.quick(processes, traces, chosen)
    else:
        request = bench.Request(
            scenarios=tuple(filter(None, scenarios.split(","))),
            policies=chosen,
            seeds=_seeds(seeds),
            arms=_arms(arm),
            duration_s=duration,
            processes=processes,
            traces=traces,
            keep=not fresh,
        )
    cells = _run(request, bench.compare)
    broken = [result for result in bench.check(cells) if not result.holds] if quick else []
    if as_json:
        print_json(bench.cells_json(cells) | {"bars_broken": [bench.bar_text(result) for result in broken]})
    else:
        _print_tables(cells, traces)
    for result in broken:
        typer.echo(f"bar broken: {bench.bar_text(result)}", err=True)
    if broken:
        raise typer.Exit(EXIT_VERDICT)


def _print_tables(cells: "list[Cell]", traces: Path) -> None:
    from evenload.bench import main as bench

    for name, group in bench.by_scenario(cells).items():
        typer.echo(f"\n{name}: {group[0].case.scenario.shows} [{group[0].source}]")
        for line in bench.lines([bench.printable(row) for row in bench.scenario_rows(group)]):
            typer.echo(line)
    note = bench.missing_traces(traces, cells)
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
        total = len(request.cases())
    except ValueError as error:
        raise CommandError(str(error)) from None
    with _progress(total) as done:
        return runner(request, done)


@contextmanager
def _progress(total: int) -> "Iterator[Callable[[Cell], None]]":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("simulating", total=total)

        def done(cell: "Cell") -> None:
            bar.update(task, advance=1, description=f"{cell.case.scenario.name} {cell.case.policy}")

        yield done


def _seeds(text: str) -> tuple[int, ...]:
    """Read `5` (1 to 5; the single seed 1 for `1`), `3-6`, or `2,5,9`.

    Raises:
        CommandError: it is none of these.
    """
    try:
        if "," in text:
            return tuple(int(part) for part in text.split(",") if part)
        first, dash, last = text.partition("-")
        found = tuple(range(int(first), int(last) + 1)) if dash else tuple(range(1, int(text) + 1))
    except ValueError:
        found = ()
    if not found:
        raise CommandError(f"--seeds {text!r}: give a count (5), a range (1-10) or a list (3,7)")
    return found


def _arms(arm: str) -> "tuple[Literal['equal', 'bare'], ...]":
    return ("equal", "bare") if arm == "both" else ("bare",) if arm == "bare" else ("equal",)
