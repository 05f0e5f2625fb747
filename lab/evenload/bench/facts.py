"""What results come from: commit, machine, cells, time."""

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evenload.bench.grid import Cell
from evenload.sim.simulation import simulate


@dataclass(frozen=True, slots=True)
class Facts:
    """What a reader needs to judge or repeat results."""

    grid: str
    commit: str
    machine: str
    runs: int
    seeds: tuple[int, ...]
    cpu_s: float
    simulated_s: float
    sources: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return sentences."""
        seeds = f"seeds {self.seeds[0]} to {self.seeds[-1]}" if len(self.seeds) > 1 else f"seed {self.seeds[0]} only"
        return [
            f"{self.runs} runs ({seeds}), {self.simulated_s / 3600.0:.1f} hours of simulated time in "
            f"{self.cpu_s / 60.0:.1f} minutes of CPU, at commit {self.commit} on {self.machine}. Time is virtual: the "
            "machine decides how long it takes, not what comes out.",
            f"Workloads: {', '.join(self.sources)}.",
        ]


def facts(cells: Sequence[Cell], grid: str) -> Facts:
    """Collect them for cells of a grid; at least one."""
    return Facts(
        grid,
        commit(),
        machine(),
        len(cells),
        tuple(sorted({cell.case.seed for cell in cells})),
        sum(cell.took_s for cell in cells),
        sum(cell.case.scenario.duration_s for cell in cells),
        tuple(sorted({_source(cell) for cell in cells})),
    )


def commit() -> str:
    """Return the short hash of the checkout, with `+` for changes on top; `unknown` outside of one."""
    folder = Path(simulate.__code__.co_filename).parent
    try:
        found = _git(folder, "rev-parse", "--short=12", "HEAD").strip()
        return found + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no").strip() else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def machine() -> str:
    """Return cores, processor and Python."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}"


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True).stdout


def _source(cell: Cell) -> str:
    trace = cell.case.scenario.workload.trace
    return (
        f"{trace} (stand-in by distribution)"
        if cell.source == "synthetic"
        else f"{trace} ({cell.source.partition(':')[0]})"
    )
