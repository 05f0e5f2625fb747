"""From names of traces to jobs: public traces when they are there, stand-ins by distribution otherwise.

A name may also be the path of a file of somebody's own, in any format that `evenload.workload` reads.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Final

from evenload.sim import synthetic
from evenload.sim.capacity import capacity_rps
from evenload.sim.jobs import JOBS_MAX, Job, Row, arrivals, sized, trace_length_s
from evenload.sim.scenario import Scenario
from evenload.workload import read_trace

FILES: Final = {
    "azure-conv": "azure2023/conv.csv",
    "azure-code": "azure2023/code.csv",
    "mooncake-conversation": "mooncake/conversation_trace.jsonl",
    "mooncake-synthetic": "mooncake/synthetic_trace.jsonl",
    "m-large": "servegen/m-large_20h-21h_10rps_seed1.csv",
    "deepseek-r1": "servegen/deepseek-r1_20h-21h_5rps_seed1.csv",
}
DEFAULT: Final = Path("../shared/traces")
HOW_TO_GET: Final = (
    "Azure: github.com/Azure/AzurePublicDataset (2023 LLM inference); Mooncake: github.com/kvcache-ai/Mooncake, FAST25 "
    "traces; ServeGen: generate with github.com/alibaba/ServeGen. Names as in evenload.bench.inputs.FILES."
)


def trace_file(traces: Path, name: str) -> Path | None:
    """Return the file of a trace, or None when it is not there (the stand-in is used then)."""
    path = traces / FILES.get(name, name)
    return path if path.is_file() else None


def provenance(traces: Path, name: str) -> str:
    """Return what identifies the rows of a trace: the file's name and size, or `synthetic`.

    A public trace stays what it is; a file of one's own may have been edited, and its content decides.
    """
    path = trace_file(traces, name)
    if path is None:
        return "synthetic"
    if name in FILES:
        return f"{path.name}:{path.stat().st_size}"
    return f"{path.name}:{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


@lru_cache(maxsize=8)
def rows_of(traces: Path, name: str) -> tuple[Row, ...]:
    """Return the rows of a trace.

    Raises:
        TraceError: the file is malformed; the message has file and line.
        ValueError: neither a file nor a stand-in has this name.
    """
    path = trace_file(traces, name)
    if path is None:
        return tuple(synthetic.rows(name))
    found = read_trace(path, Random(f"jitter/{Path(name).name}")).arrivals
    return tuple(Row(a.at_s, a.prompt_tokens, a.output_tokens, a.hashes) for a in found)


@lru_cache(maxsize=16)
def _prepared(traces: Path, scenario: Scenario) -> tuple[tuple[Row, ...], float]:
    workload = scenario.workload
    rows = tuple(sized(workload, rows_of(traces, workload.trace), Random(f"sizes/{Path(workload.trace).name}")))
    return rows, rate_rps(scenario, rows)


@lru_cache(maxsize=2)
def jobs_of(traces: Path, scenario: Scenario, seed: int) -> tuple[Job, ...]:
    """Return the jobs of a scenario; the same for all policies."""
    rows, rate = _prepared(traces, scenario)
    workload = scenario.workload
    rng = Random(f"{scenario.family}/{Path(workload.trace).name}/{seed}")
    return tuple(arrivals(workload, rows, rate, scenario.duration_s, rng))


def refuse_load(traces: Path, scenario: Scenario) -> None:
    """Refuse a load that somebody asked for and that says nothing, or never ends.

    Raises:
        ValueError: less than one request is to be expected in the whole run, or more than `JOBS_MAX`.
    """
    rate = _prepared(traces, scenario)[1]
    expected = rate * max([1.0, *(factor for _, factor in scenario.workload.phases)]) * scenario.duration_s
    if not 1.0 <= expected <= JOBS_MAX:
        raise ValueError(
            f"scenario {scenario.name}: {expected:.3g} requests in {scenario.duration_s:g} s at {rate:.3g} per second; "
            f"at least 1 and at most {JOBS_MAX} can be simulated"
        )


def rate_rps(scenario: Scenario, rows: Sequence[Row]) -> float:
    """Return the mean arrival rate of a scenario: given, or a share of what its engines can complete."""
    workload = scenario.workload
    if workload.rate_rps is not None:
        return workload.rate_rps
    if workload.time_factor is not None:
        return workload.time_factor * len(rows) / trace_length_s(rows)
    assert workload.utilisation is not None
    machines = [spec.machine for spec in scenario.fleet]
    if None in machines:
        raise ValueError(f"scenario {scenario.name}: a provider has no capacity; give rate_rps")
    each = {machine: capacity_rps(machine, rows) for machine in set(machines) if machine is not None}
    return workload.utilisation * sum(each[machine] for machine in machines if machine is not None)
