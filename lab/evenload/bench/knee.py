"""Goodput capacity: the highest load at which 99 % of the requests meet every SLO.

Between two loads that were run, attainment and what is served are interpolated linearly; the capacity is where the line
first falls below 99 %. A policy that falls below at the lowest load has a capacity under it, and one that never does a
capacity of the highest load or more; ratios that would rest on the former are not given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Final, Literal

from evenload.bench.evidence import Evidence, Statistic

ATTAINED: Final = 0.99


@dataclass(frozen=True, slots=True)
class Knee:
    """Where goodput breaks.

    Attributes:
        goodput_rps, effective_tps: what is served there.
        bound: whether the capacity lies within the loads that were run.
    """

    goodput_rps: float
    effective_tps: float
    bound: Literal["within", "below", "above"] = "within"

    def describe(self) -> str:
        """Return it in words."""
        return {"within": "", "below": "under ", "above": "at least "}[self.bound] + f"{self.goodput_rps:.0f} req/s"


Load = tuple[Statistic, Statistic, Statistic]  # attainment, goodput and tokens/s at one load


def loads(evidence: Evidence, cells: Sequence[str], policy: str) -> list[Load]:
    """Return the medians that a knee is found in; `cells` in order of load."""
    median = evidence.median
    return [
        (median(cell, policy, "attainment"), median(cell, policy, "goodput_rps"), median(cell, policy, "effective_tps"))
        for cell in cells
    ]


def knee(loads: Sequence[Load], seeds: Sequence[int]) -> Knee:
    """Return the knee over some seeds.

    Raises:
        ValueError: no loads.
    """
    if not loads:
        raise ValueError("no loads to find a knee in")
    points = [[statistic(seeds) for statistic in load] for load in loads]
    before = points[0]
    if before[0] < ATTAINED:
        return Knee(before[1], before[2], "below")
    for point in points[1:]:
        if point[0] < ATTAINED:
            part = (before[0] - ATTAINED) / (before[0] - point[0])
            return Knee(before[1] + part * (point[1] - before[1]), before[2] + part * (point[2] - before[2]))
        before = point
    return Knee(before[1], before[2], "above")


def relative_capacity(evidence: Evidence, cells: Sequence[str], figure: str, mine: str, other: str) -> Statistic:
    """Return the ratio of two policies' capacities, as a function of the seeds; NaN where one is not known.

    Args:
        evidence: the results.
        cells: in order of load.
        figure: `goodput_rps` or `effective_tps`.
        mine: over
        other: this policy's.
    """
    my_loads, other_loads = loads(evidence, cells, mine), loads(evidence, cells, other)

    def statistic(seeds: Sequence[int]) -> float:
        over, under = knee(my_loads, seeds), knee(other_loads, seeds)
        if under.bound != "within" or over.bound == "below":
            return 1.0 if over.bound == under.bound == "above" else nan
        return float(getattr(over, figure) / getattr(under, figure))

    return statistic
