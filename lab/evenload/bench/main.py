"""What `evenload sim` calls: which cases, run them, rows of them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any, Final

from evenload.bench.bars import Verdict, judge
from evenload.bench.costs import Estimate, case_s, estimates
from evenload.bench.document import document
from evenload.bench.facts import facts
from evenload.bench.grid import Cache, Cell, run_case, run_grid
from evenload.bench.inputs import DEFAULT, HOW_TO_GET, jobs_of, refuse_load, rows_of, trace_file
from evenload.bench.page import page
from evenload.bench.plans import CUSTOM, PLANS, Plan
from evenload.bench.plot_style import require_plots
from evenload.bench.plots import plots
from evenload.bench.quick import BarResult, check
from evenload.bench.tables import by_scenario, lines, printable, scenario_rows
from evenload.bench.words import cost_rows, costs_json, plain, verdict_rows, verdicts_json
from evenload.sim.scenario import Arm, Case
from evenload.sim.scenarios import SCENARIOS
from evenload.workload import read_trace

__all__ = [
    "DEFAULT",
    "PLANS",
    "BarResult",
    "Case",
    "Cell",
    "Estimate",
    "Plan",
    "Request",
    "Verdict",
    "by_scenario",
    "case_s",
    "cells_json",
    "check",
    "compare",
    "cost_rows",
    "costs_json",
    "estimate",
    "judge",
    "lines",
    "listing",
    "printable",
    "require_folders",
    "require_plots",
    "run_case",
    "scenario_rows",
    "verdict_rows",
    "verdicts_json",
    "write_reports",
]

CACHE: Final = Path(".evenload/sim")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run: a plan, and what takes the place of its own choice of seeds and so on.

    Attributes:
        scenarios: selectors (names, families, prefixes of names); others are left out.
        policies, seeds, arms: in place of the plan's.
        duration_s: simulated time of cells; a fault, or what is measured, is never cut off.
        workload: a file of one's own in place of the scenarios' traces.
        rate_rps: mean rate of arrivals in place of the scenarios' own.
        processes: worker processes.
        traces: folder of the public traces.
        keep: whether to use the cache.
        kept_only: whether to run nothing and return what the cache has.
    """

    plan: Plan = CUSTOM
    scenarios: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    arms: tuple[Arm, ...] = ()
    duration_s: float | None = None
    workload: Path | None = None
    rate_rps: float | None = None
    processes: int = 1
    traces: Path = DEFAULT
    keep: bool = True
    kept_only: bool = False

    def cases(self) -> list[Case]:
        """Return the cases.

        Raises:
            ValueError: an unknown scenario or policy, nothing is left of the plan, no positive rate or duration, no
                request in it or too many, or a malformed file (`TraceError`, with file and line).
        """
        if self.duration_s is not None and not 0 < self.duration_s < inf:
            raise ValueError(f"duration: give a positive number of seconds, got {self.duration_s:g}")
        cases = self.plan.cases(
            scenarios=self.scenarios,
            policies=self.policies,
            seeds=self.seeds,
            arms=self.arms,
            duration_s=self.duration_s,
        )
        if self.workload is not None or self.rate_rps is not None:
            cases = self._fed(cases)
        if (self.workload, self.rate_rps, self.duration_s) != (None, None, None):
            for scenario in {case.scenario.name: case.scenario for case in cases}.values():
                refuse_load(self.traces, scenario)
        return cases

    def longer(self, cases: Sequence[Case]) -> list[str]:
        """Return the scenarios that keep more time than was asked for, since a fault or a measurement needs it."""
        asked_s = self.duration_s
        return sorted({c.scenario.name for c in cases if asked_s is not None and c.scenario.duration_s > asked_s})

    def _fed(self, cases: Sequence[Case]) -> list[Case]:
        file = None
        if self.workload is not None:
            file = str(self.workload.resolve())
            read_trace(self.workload, Random(0))  # here, not in a worker
        return [replace(case, scenario=case.scenario.fed(file, self.rate_rps)) for case in cases]


def compare(request: Request, done: Callable[[Cell], None] = lambda _: None) -> list[Cell]:
    """Run (or read) all cases of a request."""
    cache = Cache(CACHE if request.keep else None)
    cases = request.cases()
    if request.kept_only:
        kept = (cache.get(case, request.traces) for case in cases)
        return [cell for cell in kept if cell is not None]
    return run_grid(cases, request.traces, cache, processes=request.processes, done=done)


def estimate(request: Request) -> list[Estimate]:
    """Return what each scenario of a request will cost, results that are kept already apart."""
    cache = Cache(CACHE if request.keep else None)
    return estimates(request.cases(), lambda case: cache.has(case, request.traces))


def cells_json(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return everything about the cells as plain data; infinite figures are text."""
    found = {
        "scenarios": {
            name: {"shows": group[0].case.scenario.shows, "source": group[0].source, "policies": scenario_rows(group)}
            for name, group in by_scenario(cells).items()
        },
        "cells": [
            {
                "scenario": cell.case.scenario.name,
                "policy": cell.case.policy,
                "seed": cell.case.seed,
                "arm": cell.case.arm,
                "figures": cell.figures,
                "curves": cell.curves,
                "digest": cell.digest,
                "command": cell.case.command,
                "took_s": round(cell.took_s, 2),
            }
            for cell in cells
        ],
    }
    return {name: plain(value) for name, value in found.items()}


def listing(traces: Path) -> list[dict[str, Any]]:
    """Return the scenarios with their rate, and where their workload comes from."""
    rows: list[dict[str, Any]] = []
    for scenario in SCENARIOS.values():
        trace = scenario.workload.trace
        source = "trace" if trace_file(traces, trace) else "synthetic"
        rows.append(
            {
                "scenario": scenario.name,
                "shows": scenario.shows,
                "requests": len(jobs_of(traces, scenario, 1)),
                "workload": f"{trace} ({source}, {len(rows_of(traces, trace))} rows)",
            }
        )
    return rows


def missing_traces(traces: Path, cells: Sequence[Cell]) -> str | None:
    """Return a sentence on what was used in place of traces that are not there."""
    names = sorted({cell.case.scenario.workload.trace for cell in cells if cell.source == "synthetic"})
    if not names:
        return None
    return f"{', '.join(names)}: not in {traces}, so stand-ins by distribution were used. {HOW_TO_GET}"


def require_folders(report: Path | None, document_file: Path | None) -> None:
    """Make the folders that `write_reports` writes to.

    Raises:
        ValueError: one cannot be made or written to, or the page is a folder; the message names it.
    """
    folders = [] if report is None else [report]
    if document_file is not None:
        if document_file.is_dir():
            raise ValueError(f"{document_file}: is a folder; name a file")
        if not document_file.suffix:
            raise ValueError(f"{document_file}: give the file an ending (.md); its plots go to a folder without it")
        folders += [document_file.parent, document_file.with_suffix("")]
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{folder}: cannot be made: {error.strerror}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError(f"{folder}: cannot be written to")


def write_reports(cells: Sequence[Cell], grid: str, report: Path | None, document_file: Path | None) -> list[Path]:
    """Write `report.html` and its plots into one folder, a Markdown page and its plots into another; return the files.

    Args:
        cells: what to tell of.
        grid: the plan's name.
        report: folder of the HTML report, made if need be; None writes none.
        document_file: the page; its plots go into a folder beside it that has its name.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    if report is None and document_file is None:
        return []
    verdicts, pictures, where = judge(cells), plots(cells), facts(cells, grid)
    texts: list[tuple[Path, str]] = []
    folders: list[Path] = []
    if report is not None:
        texts.append((report / "report.html", page(cells, verdicts, pictures, where)))
        folders.append(report)
    if document_file is not None:
        name = PurePosixPath(document_file.as_posix())
        texts.append((document_file, document(cells, verdicts, pictures, where, name)))
        folders.append(document_file.with_suffix(""))
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            (folder / f"{picture.name}.png").write_bytes(picture.png)
    for path, text in texts:
        path.write_text(text, encoding="utf-8")
    return [path for path, _ in texts]
