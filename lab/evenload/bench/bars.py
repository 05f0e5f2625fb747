"""What the quick comparison must show, so that a change that breaks routing does not pass unseen.

The bars are wide: two seeds of short cells say that something is broken, not which of two good policies is better.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from evenload.bench.grid import Cell
from evenload.sim.comparison import median


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure's median over seeds must not exceed `most`."""

    scenario: str
    policy: str
    figure: str
    most: float


@dataclass(frozen=True, slots=True)
class BarResult:
    """A bar and the figure it met."""

    bar: Bar
    found: float

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.found <= self.bar.most


USABLE = ("health-ramp", "peak-ewma-decay")  # what production may run
BARS: tuple[Bar, ...] = tuple(
    bar
    for policy in USABLE
    for bar in (
        Bar("s1-u85", policy, "unserved_share", 0.0),
        Bar("s6-kv", policy, "crashes", 0.0),
        Bar("s7-step", policy, "harmed_share", 0.02),
        Bar("s7-step", policy, "t95_s", 3.0),
        Bar("s7-step", policy, "fault_ttft_p99_ms", 1500.0),
        Bar("s8-all", policy, "fault_unserved_share", 0.001),
        Bar("s8-all", policy, "fault_share", 0.03),
    )
)


def check(cells: Sequence[Cell]) -> list[BarResult]:
    """Return the bars that the cells say something about."""
    results: list[BarResult] = []
    for bar in BARS:
        values = [
            cell.figures[bar.figure]
            for cell in cells
            if cell.case.scenario.name == bar.scenario and cell.case.policy == bar.policy and bar.figure in cell.figures
        ]
        if values:
            results.append(BarResult(bar, median(values)))
    return results
