"""Workloads of a simulation: jobs in order of arrival, made from the rows of a trace at a wanted rate.

Rescaling, always said in the notes of a scenario: `superpose` lays as many randomly rotated copies of the trace over
each other as fit under the rate and compresses time by the rest (bursts keep their length); `compress` only compresses
time (prefix sharing keeps its meaning, and published figures "at 2 x" mean this).

Each job carries its own random numbers, so that all policies meet the same luck (common random numbers).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from random import Random
from typing import Literal

Scaling = Literal["superpose", "compress"]
HASH_TOKENS = 512  # prompt tokens per prefix hash, as in Mooncake's traces
JOBS_MAX = 2_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """A request of a trace: seconds after its start, sizes in tokens, hashes of its whole 512-token prefix blocks."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """One user request.

    Attributes:
        number: position in the workload.
        at_ms: arrival.
        noise: a standard normal, for whoever draws a latency for it.
        draw: a uniform, for faults that hit a share of requests.
    """

    number: int
    at_ms: float
    prompt_tokens: int
    output_tokens: int
    hashes: tuple[int, ...] = ()
    noise: float = 0.0
    draw: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What arrives. Sizes and arrivals come from the trace of that name.

    Attributes:
        trace: name of a trace, for example `azure-conv`.
        utilisation: rate as a share of the fleet's capacity (`capacity.py`); None when `rate_rps` is given.
        rate_rps: rate in requests per second.
        time_factor: compress the trace by this factor, whatever rate that gives ("2 x").
        scaling: see the module docstring.
        long_share, long_tokens: share of prompts replaced by long ones, and their least and largest size.
        phases: `(until_s, factor)`: the rate is multiplied by a factor up to a time; after the last one by 1.
        tokens_max: jobs whose prompt and output exceed this are cut to it (prompt first).
    """

    trace: str
    utilisation: float | None = None
    rate_rps: float | None = None
    time_factor: float | None = None
    scaling: Scaling = "superpose"
    long_share: float = 0.0
    long_tokens: tuple[int, int] = (32_768, 65_536)
    phases: tuple[tuple[float, float], ...] = ()
    tokens_max: int | None = None

    def __post_init__(self) -> None:
        """Refuse a workload without a rate, or with two.

        Raises:
            ValueError: not exactly one of `utilisation`, `rate_rps` and `time_factor` is given.
        """
        given = [value for value in (self.utilisation, self.rate_rps, self.time_factor) if value is not None]
        if len(given) != 1 or not 0 < given[0] < inf:
            raise ValueError(f"workload: give one of utilisation, rate_rps and time_factor, positive; got {given}")


def sized(workload: Workload, rows: Sequence[Row], rng: Random) -> list[Row]:
    """Return the rows with the workload's long prompts mixed in and sizes cut to what fits."""
    low, high = workload.long_tokens
    result: list[Row] = []
    for row in rows:
        prompt, output = row.prompt_tokens, row.output_tokens
        if workload.long_share and rng.random() < workload.long_share:
            prompt = low + int(rng.random() * (high - low))
        if workload.tokens_max is not None:
            output = min(output, workload.tokens_max // 2)
            prompt = min(prompt, workload.tokens_max - output)
        same = prompt == row.prompt_tokens and output == row.output_tokens
        result.append(row if same else Row(row.at_s, prompt, output, row.hashes[: prompt // HASH_TOKENS]))
    return result


def arrivals(workload: Workload, rows: Sequence[Row], rate_rps: float, duration_s: float, rng: Random) -> list[Job]:
    """Return the jobs of `duration_s` seconds at a mean rate.

    Args:
        workload: how to rescale.
        rows: in order of time, `sized` already.
        rate_rps: of factor 1, when `phases` changes it.
        duration_s: no job comes later.
        rng: for rotations, thinning and the jobs' own random numbers.

    Raises:
        ValueError: no rows, or more jobs than `JOBS_MAX`.
    """
    if not rows:
        raise ValueError(f"workload {workload.trace}: no rows")
    peak = max((factor for _, factor in workload.phases), default=1.0)
    peak = max(1.0, peak)
    if rate_rps * peak * duration_s > JOBS_MAX:
        raise ValueError(f"workload {workload.trace}: more than {JOBS_MAX} jobs")
    found = sorted(
        (at_s, number, row)
        for number, (at_s, row) in enumerate(_rescaled(rows, workload.scaling, rate_rps * peak, duration_s, rng))
        if rng.random() < _factor(workload, at_s) / peak
    )
    return [
        Job(
            number,
            at_s * 1000.0,
            row.prompt_tokens,
            row.output_tokens,
            row.hashes,
            noise=rng.gauss(0.0, 1.0),
            draw=rng.random(),
        )
        for number, (at_s, _, row) in enumerate(found)
    ]


def trace_length_s(rows: Sequence[Row]) -> float:
    """Return the length of a trace: the last arrival and one mean gap."""
    last_s = rows[-1].at_s
    return last_s + last_s / max(1, len(rows) - 1) if last_s > 0 else 1.0


def _factor(workload: Workload, at_s: float) -> float:
    for until_s, factor in workload.phases:
        if at_s < until_s:
            return factor
    return 1.0


def _rescaled(
    rows: Sequence[Row], scaling: Scaling, rate_rps: float, duration_s: float, rng: Random
) -> list[tuple[float, Row]]:
    length_s = trace_length_s(rows)
    own_rps = len(rows) / length_s
    copies = max(1, int(rate_rps / own_rps)) if scaling == "superpose" else 1
    factor = rate_rps / (copies * own_rps)
    times = [row.at_s for row in rows]
    # Time compression alone replays the trace from its start: its prefixes have to be met in order.
    starts = [rng.random() * length_s for _ in range(copies)] if scaling == "superpose" else [0.0]
    result: list[tuple[float, Row]] = []
    for start_s in starts:
        for lap in range(ceil((start_s + duration_s * factor) / length_s)):
            shift_s = lap * length_s - start_s
            first = bisect_left(times, -shift_s)
            last = bisect_left(times, duration_s * factor - shift_s)
            result += [((rows[i].at_s + shift_s) / factor, rows[i]) for i in range(first, last)]
    return result
