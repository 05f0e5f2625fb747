"""Figures by scenario, policy and seed, and statistics over seeds with their intervals.

Every statistic is a function of a list of seeds; its 95 % interval comes from 2,000 resamples of the seeds, so policies
that are compared stay paired. Where a seed's figure is not a number, the seed is left out.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isnan, nan
from random import Random
from typing import Final

from evenload.bench.grid import Cell
from evenload.sim.comparison import median, ratio
from evenload.sim.scenario import Arm

RESAMPLES: Final = 2_000
Statistic = Callable[[Sequence[int]], float]


@dataclass(frozen=True, slots=True)
class Measured:
    """A statistic with its 95 % interval over `seeds` seeds."""

    value: float
    low: float
    high: float
    seeds: int


class Evidence:
    """The results of one arm.

    Args:
        cells: any; those of the other arm are left out.
    """

    def __init__(self, cells: Iterable[Cell], arm: Arm = "equal") -> None:
        self._cells: dict[tuple[str, str], dict[int, Cell]] = {}
        for cell in cells:
            if cell.case.arm == arm:
                key = (cell.case.scenario.name, cell.case.policy)
                self._cells.setdefault(key, {})[cell.case.seed] = cell

    def __repr__(self) -> str:
        return f"Evidence({len(self._cells)} pairs of scenario and policy)"

    @property
    def scenarios(self) -> list[str]:
        """Names of the scenarios, in the order of the cells."""
        return list(dict.fromkeys(name for name, _ in self._cells))

    def policies(self, scenario: str) -> list[str]:
        """Return the policies that ran in a scenario."""
        return [policy for name, policy in self._cells if name == scenario]

    def cells(self, scenario: str, policy: str) -> list[Cell]:
        """Return the cells of a scenario and policy, by seed."""
        found = self._cells.get((scenario, policy), {})
        return [found[seed] for seed in sorted(found)]

    def seeds(self, *pairs: tuple[str, str]) -> tuple[int, ...]:
        """Return the seeds that all pairs of scenario and policy have."""
        common = [self._cells.get(pair, {}).keys() for pair in pairs]
        return tuple(sorted(set.intersection(*map(set, common)))) if common else ()

    def values(self, scenario: str, policy: str, figure: str) -> dict[int, float]:
        """Return a figure by seed, those that are no number left out."""
        found = {seed: cell.figures.get(figure, nan) for seed, cell in self._cells.get((scenario, policy), {}).items()}
        return {seed: value for seed, value in found.items() if not isnan(value)}

    def median(self, scenario: str, policy: str, figure: str) -> Statistic:
        """Return the median of a figure, as a function of the seeds."""
        return _median_of(self.values(scenario, policy, figure))

    def ratio(self, mine: tuple[str, str, str], other: tuple[str, str, str]) -> Statistic:
        """Return the median of seed by seed ratios of two figures, each `(scenario, policy, figure)`."""
        over, under = self.values(*mine), self.values(*other)
        return _median_of({seed: ratio(value, under[seed]) for seed, value in over.items() if seed in under})

    @staticmethod
    def measure(statistic: Statistic, seeds: Sequence[int]) -> Measured:
        """Return a statistic over seeds with its interval."""
        value = statistic(seeds)
        if len(seeds) < 2 or isnan(value):
            return Measured(value, value, value, len(seeds))
        found = sorted(one for one in map(statistic, _resamples(tuple(seeds))) if not isnan(one))
        return Measured(value, found[int(0.025 * len(found))], found[int(0.975 * len(found))], len(seeds))


@lru_cache(maxsize=8)
def _resamples(seeds: tuple[int, ...]) -> list[list[int]]:
    rng = Random(1)
    count = len(seeds)
    return [[seeds[int(rng.random() * count)] for _ in seeds] for _ in range(RESAMPLES)]


def _median_of(values: dict[int, float]) -> Statistic:
    return lambda seeds: median([values[seed] for seed in seeds if seed in values])
