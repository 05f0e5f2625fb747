"""Results made by hand, for tests of what is said about results."""

from collections.abc import Mapping, Sequence

from evenload.bench.grid import Cell
from evenload.sim.scenario import Arm, Case
from evenload.sim.scenarios import SCENARIOS

ME, LEAST, ORACLE = "predictive", "least-connections", "oracle"
Table = Mapping[tuple[str, str], Mapping[str, float]]


def cell(
    scenario: str,
    policy: str,
    seed: int = 1,
    figures: Mapping[str, float] | None = None,
    *,
    arm: Arm = "equal",
    **more: float,
) -> Cell:
    """A run with these figures; its TTFT are all 0.1 s, and the faulty instance has 1 % of the attempts."""
    case = Case(scenario=SCENARIOS[scenario], policy=policy, seed=seed, arm=arm)
    curves = {"ttft_ms": [100.0] * 200}
    if case.scenario.faults:
        curves["faulty_share"] = [0.01] * int(case.scenario.duration_s)
    return Cell(case, {"requests": 1000.0, **(figures or {}), **more}, curves, "0" * 16, "synthetic", 1.0)


def cells(table: Table, seeds: Sequence[int] = range(1, 5)) -> list[Cell]:
    """One run per scenario, policy and seed, all seeds alike."""
    return [cell(name, policy, seed, figures) for (name, policy), figures in table.items() for seed in seeds]
