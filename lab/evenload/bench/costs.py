"""What a grid will cost: CPU seconds per simulated second, measured once per scenario.

Measured 2026-11-30 on the 2-core machine of docs/benchmark.md with least-connections; the oracle, which rolls each
arrival forward on every instance, takes more. Where a scenario has no figure of its own, its family's stands in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from evenload.sim.policies import ORACLE
from evenload.sim.scenario import Case

ORACLE_FACTOR: Final = 1.5
CPU_PER_SIMULATED_S: Final = {
    "S1": 0.050,
    "s1-u50": 0.037,
    "S2": 0.060,
    "S3": 0.052,
    "S4": 0.013,
    "S5": 0.030,
    "S6": 0.028,
    "S7": 0.035,
    "s7-engines": 0.062,
    "S8": 0.067,
    "S9": 0.136,
    "s9-join": 0.081,
    "S10": 0.055,
    "S11": 0.116,
    "s11-r32": 0.218,
    "S12": 0.022,  # 60 s of it; the caches fill up later
    "S13": 0.055,
    "Headline": 0.060,
}


@dataclass(slots=True)
class Estimate:
    """What one scenario costs.

    Attributes:
        runs: how many; `kept` of them are in the cache and cost nothing.
        cpu_s: of the others.
    """

    scenario: str
    simulated_s: float
    policies: int = 0
    runs: int = 0
    kept: int = 0
    cpu_s: float = 0.0


def case_s(case: Case) -> float:
    """Return the CPU seconds that a case takes, roughly."""
    scenario = case.scenario
    each = CPU_PER_SIMULATED_S.get(scenario.name, CPU_PER_SIMULATED_S[scenario.family])
    return each * scenario.duration_s * (ORACLE_FACTOR if case.policy == ORACLE else 1.0)


def estimates(cases: Sequence[Case], kept: Callable[[Case], bool]) -> list[Estimate]:
    """Return what each scenario costs, in the order of the cases."""
    found: dict[str, Estimate] = {}
    policies: dict[str, set[str]] = {}
    for case in cases:
        scenario = case.scenario
        one = found.setdefault(scenario.name, Estimate(scenario.name, scenario.duration_s))
        policies.setdefault(scenario.name, set()).add(case.policy)
        one.policies = len(policies[scenario.name])
        one.runs += 1
        if kept(case):
            one.kept += 1
        else:
            one.cpu_s += case_s(case)
    return list(found.values())
