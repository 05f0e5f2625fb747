"""Many cases on several processes; each result is kept on disk at once, and the next run takes up where one ended."""

import gc
import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from evenload.bench.digests import core_digest, policy_digest
from evenload.bench.inputs import jobs_of, provenance
from evenload.sim.metrics import curves, figures, unloaded_figures
from evenload.sim.scenario import Case
from evenload.sim.simulation import simulate


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of a case.

    Attributes:
        figures: see `evenload.sim.metrics`.
        curves: for plots.
        digest: over everything that happened.
        source: file of the trace, or `synthetic`.
        took_s: CPU seconds.
        fresh: whether it was computed now, not read from the cache.
    """

    case: Case
    figures: dict[str, float]
    curves: dict[str, list[float]]
    digest: str
    source: str
    took_s: float
    fresh: bool = True


def run_case(case: Case, traces: Path) -> Cell:
    """Simulate one case in this process."""
    jobs = jobs_of(traces, case.scenario, case.seed)
    collecting = gc.isenabled()
    gc.disable()  # a run makes no cycles worth the time of looking for them
    try:
        start = os.times().user
        result = simulate(case, jobs)
        took_s = os.times().user - start
    finally:
        if collecting:
            gc.enable()
    found = figures(result) | unloaded_figures(result)
    return Cell(case, found, curves(result), result.digest(), provenance(traces, case.scenario.workload.trace), took_s)


class Cache:
    """Results on disk, one small file each.

    Args:
        folder: where; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, case: Case, traces: Path) -> Cell | None:
        """Return a kept result; None when there is none or it cannot be read."""
        if self._folder is None:
            return None
        try:
            kept = json.loads(self._path(case, traces).read_text(encoding="utf-8"))
            return Cell(
                case,
                {name: float(value) for name, value in kept["figures"].items()},
                {name: [float(v) for v in values] for name, values in kept["curves"].items()},
                kept["digest"],
                kept["source"],
                kept["took_s"],
                fresh=False,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def has(self, case: Case, traces: Path) -> bool:
        """Return whether there is a kept result."""
        return self._folder is not None and self._path(case, traces).is_file()

    def put(self, cell: Cell, traces: Path) -> None:
        """Keep a result; a half-written file never shows."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(cell.case, traces)
        kept = {
            "command": cell.case.command,
            "figures": {name: _plain(value) for name, value in cell.figures.items()},
            "curves": {name: [_plain(v) for v in values] for name, values in cell.curves.items()},
            "digest": cell.digest,
            "source": cell.source,
            "took_s": round(cell.took_s, 3),
        }
        half = path.with_suffix(f".{os.getpid()}.tmp")
        half.write_text(json.dumps(kept), encoding="utf-8")
        half.replace(path)

    def _path(self, case: Case, traces: Path) -> Path:
        assert self._folder is not None
        return self._folder / f"{case_key(case, traces)}.json"


def case_key(case: Case, traces: Path) -> str:
    """Return what identifies a result: the case, the code and the trace."""
    parts = (
        repr(asdict(case)),
        core_digest(),
        policy_digest(case.policy),
        provenance(traces, case.scenario.workload.trace),
    )
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
    return f"{case.scenario.name}-{case.policy.replace(':', '_').replace('=', '_')[:60]}-{case.seed}-{digest}"


def run_grid(
    cases: Sequence[Case],
    traces: Path,
    cache: Cache,
    *,
    processes: int,
    done: Callable[[Cell], None] = lambda _: None,
) -> list[Cell]:
    """Return the results of all cases, in their order.

    Args:
        cases: what to run.
        traces: folder of the public traces.
        cache: where results are looked for first, and kept.
        processes: at most this many at once; with one everything happens in this process.
        done: called with each result as it comes.
    """
    found: dict[int, Cell] = {}
    for index, case in enumerate(cases):
        cell = cache.get(case, traces)
        if cell is not None:
            found[index] = cell
            done(cell)
    missing = [index for index in range(len(cases)) if index not in found]

    def keep(index: int, cell: Cell) -> None:
        cache.put(cell, traces)
        found[index] = cell
        done(cell)

    if processes <= 1 or len(missing) <= 1:
        for index in missing:
            keep(index, run_case(cases[index], traces))
    else:
        _run_on(processes, {index: cases[index] for index in missing}, traces, keep)
    return [found[index] for index in range(len(cases))]


def _run_on(processes: int, cases: dict[int, Case], traces: Path, keep: Callable[[int, Cell], None]) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_die_with_the_terminal) as pool:
        running = {pool.submit(run_case, case, traces): index for index, case in cases.items()}
        try:
            for future in as_completed(running):
                keep(running[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()  # what they are at is lost: seconds; everything before is kept
            raise


def _die_with_the_terminal() -> None:
    """Ctrl-C reaches workers as well; they end without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _plain(value: float) -> Any:
    """Infinity and NaN are no JSON: they are kept as text, which `float` reads."""
    return round(value, 6) if isfinite(value) else str(value)
