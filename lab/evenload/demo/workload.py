"""The demo's workload: the readers live in `evenload.workload`, the sample it ships with beside this file."""

from pathlib import Path
from typing import Final

from evenload.workload.trace import (
    GRID_TOLERANCE_MS,
    MOONCAKE_GRID_MS,
    ROWS_MAX,
    Arrival,
    Trace,
    TraceError,
    read_trace,
)

SAMPLE: Final = Path(__file__).parent / "data" / "sample.csv"

__all__ = [
    "GRID_TOLERANCE_MS",
    "MOONCAKE_GRID_MS",
    "ROWS_MAX",
    "SAMPLE",
    "Arrival",
    "Trace",
    "TraceError",
    "read_trace",
]
