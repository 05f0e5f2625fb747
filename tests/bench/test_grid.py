"""Running a grid: what is done is kept, whatever ends the run, and the next one goes on from there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evenload.bench.grid import Cache, Cell, run_grid
from evenload.bench.plans import CUSTOM
from evenload.sim.scenario import Case

NO_TRACES = Path("no-traces")
RUN = [sys.executable, "-c", "from evenload.cli.app import main; main()", "sim", "compare"]


def cases(seeds: int) -> list[Case]:
    """Runs of a fraction of a second: 8 simulated seconds each."""
    return CUSTOM.cases(
        scenarios=("s1-u50",), policies=("random", "round-robin"), seeds=tuple(range(1, seeds + 1)), duration_s=8.0
    )


def test_an_interrupted_grid_goes_on_where_it_was(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    seen: list[Cell] = []

    def stop_after_three(cell: Cell) -> None:
        seen.append(cell)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(cases(3), NO_TRACES, cache, processes=1, done=stop_after_three)
    assert sum(cache.has(case, NO_TRACES) for case in cases(3)) == 3
    rest = run_grid(cases(3), NO_TRACES, cache, processes=1)
    assert [cell.fresh for cell in rest].count(False) == 3
    again = run_grid(cases(3), NO_TRACES, cache, processes=1)
    assert [cell.digest for cell in again] == [cell.digest for cell in rest]
    assert not any(cell.fresh for cell in again)


def test_two_processes_give_the_same_results_in_the_same_order(tmp_path: Path) -> None:
    alone = run_grid(cases(2), NO_TRACES, Cache(None), processes=1)
    both = run_grid(cases(2), NO_TRACES, Cache(tmp_path), processes=2)
    assert [(cell.case, cell.digest) for cell in both] == [(cell.case, cell.digest) for cell in alone]


def test_ctrl_c_ends_a_run_on_two_processes_and_says_how_to_go_on(tmp_path: Path) -> None:
    options = ["--scenarios", "s1-u50", "--policies", "random", "--seeds", "400", "--duration", "20", "-j", "2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [*RUN, *options], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        kept = tmp_path / ".evenload" / "sim"
        until_s = time.monotonic() + 120.0
        while not list(kept.glob("*.json")) and time.monotonic() < until_s:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=60.0)
    assert process.returncode == 130
    assert "the same command goes on from there" in errors
    assert "Traceback" not in errors
    assert list(kept.glob("*.json"))
