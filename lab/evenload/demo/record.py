"""A run as a file, for whoever wants to look closer: one JSON object per line, told apart by `kind`."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenload.demo.checks import Run
from evenload.demo.observe import RouterView


def write(run: Run, path: Path) -> None:
    """Write marks, samples and results; times are seconds of the load's own time."""
    with path.open("w", encoding="utf-8") as file:
        for row in _rows(run):
            file.write(json.dumps(row) + "\n")


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    yield from ({"kind": "mark", **asdict(mark)} for mark in run.marks)
    for sample in run.samples:
        yield {"kind": "sample", "at_s": round(sample.at_s, 2), "routers": [_router(r) for r in sample.routers]}
    for result in sorted(run.results, key=lambda result: result.at_s):
        yield {"kind": "result", **asdict(result)}


def _router(router: RouterView | None) -> dict[str, Any] | None:
    if router is None:
        return None
    choices = {f"{engine} {reason}": count for (engine, reason), count in router.choices.items()}
    return {
        "view": router.view,
        "snapshot_age_ms": router.snapshot_age_ms,
        "engines": {name: asdict(engine) for name, engine in router.engines.items()},
        "choices": choices,
        "telemetry": dict(router.telemetry),
    }
