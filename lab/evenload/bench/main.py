"""What `evenload sim` calls: which cases, run them, rows of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evenload.bench.bars import BarResult, check
from evenload.bench.grid import Cache, Cell, run_case, run_grid
from evenload.bench.inputs import DEFAULT, HOW_TO_GET, jobs_of, rows_of, trace_file
from evenload.bench.tables import lines, printable, scenario_rows
from evenload.routing import POLICIES
from evenload.sim.policies import ORACLE, make_policy
from evenload.sim.scenario import Arm, Case, Scenario
from evenload.sim.scenarios import QUICK, SCENARIOS, select

__all__ = [
    "DEFAULT",
    "Cell",
    "Request",
    "cells_json",
    "check",
    "compare",
    "lines",
    "listing",
    "printable",
    "run_case",
    "scenario_rows",
]

CACHE: Final = Path(".evenload/sim")
QUICK_SEEDS, QUICK_DURATION_S = 2, 60.0
QUICK_POLICIES = ("least-connections", "p2c-in-flight", "least-awaiting", "peak-ewma-decay", "health-ramp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run.

    Attributes:
        scenarios: selectors (names, families, prefixes of names); empty is all.
        policies: specifications; empty is all and the oracle.
        seeds: which seeds.
        duration_s: shorten (or lengthen) scenarios without faults to this.
        processes: worker processes.
        traces: folder of the public traces.
        keep: whether to use the cache.
    """

    scenarios: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)
    arms: tuple[Arm, ...] = ("equal",)
    duration_s: float | None = None
    processes: int = 1
    traces: Path = DEFAULT
    keep: bool = True

    def cases(self) -> list[Case]:
        """Return the cases, scenario by scenario and seed by seed, so that workers use the same jobs again.

        Raises:
            ValueError: an unknown scenario or policy.
        """
        names = self.policies or (*POLICIES, ORACLE)
        for name in names:
            make_policy(name)
        return [
            Case(scenario=scenario, policy=policy, seed=seed, arm=arm)
            for scenario in self._scenarios()
            for seed in self.seeds
            for policy in names
            for arm in self.arms
        ]

    def _scenarios(self) -> Iterable[Scenario]:
        found: dict[str, Scenario] = {}
        for selector in self.scenarios or tuple(SCENARIOS):
            found |= {one.name: one for one in select(selector)}
        for one in found.values():
            fits = self.duration_s is not None and not one.faults and one.measured_s is None
            yield one.shortened(self.duration_s) if fits and self.duration_s is not None else one


def quick(processes: int, traces: Path, policies: tuple[str, ...] = ()) -> Request:
    """Return the small comparison: one short cell of most families, two seeds."""
    return Request(
        scenarios=QUICK,
        policies=policies or QUICK_POLICIES,
        seeds=tuple(range(1, QUICK_SEEDS + 1)),
        duration_s=QUICK_DURATION_S,
        processes=processes,
        traces=traces,
    )


def compare(request: Request, done: Callable[[Cell], None] = lambda _: None) -> list[Cell]:
    """Run (or read) all cases of a request."""
    cache = Cache(CACHE if request.keep else None)
    return run_grid(request.cases(), request.traces, cache, processes=request.processes, done=done)


def by_scenario(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Group cells by scenario, in order."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.case.scenario.name, []).append(cell)
    return groups


def cells_json(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return everything about the cells as plain data; infinite figures are text."""
    return {
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


def bar_text(result: BarResult) -> str:
    """Return a bar and what it met, in words."""
    bar = result.bar
    return f"{bar.scenario} {bar.policy}: {bar.figure} is {result.found:g}, at most {bar.most:g} is allowed"


def missing_traces(traces: Path, cells: Sequence[Cell]) -> str | None:
    """Return a sentence on what was used in place of traces that are not there."""
    names = sorted({cell.case.scenario.workload.trace for cell in cells if cell.source == "synthetic"})
    if not names:
        return None
    return f"{', '.join(names)}: not in {traces}, so stand-ins by distribution were used. {HOW_TO_GET}"
