"""Comparing policies: paired ratios to least-connections over seeds, with bootstrap intervals, and regret.

The seeds of all policies share arrivals, sizes and luck, so the ratio is taken seed by seed; the result is the median
of the ratios with a 95 % interval from 2,000 resamples of the seeds. A difference within 10 % is a tie.

    regret = (X - X_oracle) / (X_least-connections - X_oracle)        of the medians; 0 is the oracle
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from random import Random

RESAMPLES = 2_000
TIE = 0.10


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median ratio with its interval; NaN where nothing could be compared."""

    median: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `tie` for a figure of which less is better; a tie unless the interval leaves 10 %."""
        if self.pairs == 0:
            return "none"
        if self.high < 1.0 - TIE:
            return "better"
        return "worse" if self.low > 1.0 + TIE else "tie"


def ratio(one: float, other: float) -> float:
    """Return one/other where infinite values may occur; two infinite ones are equal."""
    if one == other:
        return 1.0
    if other == 0.0:
        return inf
    return inf if one == inf else 0.0 if other == inf else one / other


def paired_ratio(mine: Mapping[int, float], base: Mapping[int, float], seed: int = 1) -> Ratio:
    """Return the ratio of figures by seed."""
    ratios = [
        ratio(mine[number], base[number])
        for number in sorted(mine.keys() & base.keys())
        if mine[number] == mine[number] and base[number] == base[number]
    ]
    if not ratios:
        return Ratio(nan, nan, nan, 0)
    rng = Random(seed)
    count = len(ratios)
    medians = sorted(median([ratios[int(rng.random() * count)] for _ in range(count)]) for _ in range(RESAMPLES))
    return Ratio(median(ratios), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)], count)


def regret(mine: float, base: float, oracle: float) -> float:
    """Return the regret; NaN where least-connections is within 10 % of the oracle, so that it says nothing."""
    if not (isfinite(base) and isfinite(oracle)):
        return nan if not isfinite(oracle) else (1.0 if mine == base else 0.0 if isfinite(mine) else 1.0)
    if base <= oracle * (1.0 + TIE):
        return nan
    return (mine - oracle) / (base - oracle)


def median(values: Sequence[float]) -> float:
    """Median of values among which some may be infinite; NaN of none."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return nan
    upper, lower = ordered[count // 2], ordered[(count - 1) // 2]
    return upper if upper == lower else (upper + lower) / 2
