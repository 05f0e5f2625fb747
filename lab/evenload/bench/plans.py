"""Which cells a comparison runs: `full`, `core` and `quick`, each a list of blocks of scenarios and policies.

Cells come seed by seed, so that a comparison that was interrupted has few seeds of everything, not all of a little.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from evenload.routing import POLICIES
from evenload.sim.policies import ORACLE, make_policy
from evenload.sim.scenario import Arm, Case, Scenario
from evenload.sim.scenarios import SCENARIOS, select

SUBJECT: Final = "predictive"  # the policy that the bars are about
BASE: Final = "least-connections"
PREFIX_AWARE: Final = ("sglang-cache-aware", "dynamo", "llm-d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Scenarios that share policies.

    Attributes:
        scenarios: selectors.
        policies: empty is all there are, and the oracle.
        duration_s: simulated time, where the scenario's own is longer than the statistics need.
    """

    scenarios: tuple[str, ...]
    policies: tuple[str, ...] = ()
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A grid of cells."""

    name: str
    blocks: tuple[Block, ...]
    seeds: tuple[int, ...] = tuple(range(1, 11))
    arms: tuple[Arm, ...] = ("equal",)

    def cases(
        self,
        *,
        scenarios: tuple[str, ...] = (),
        policies: tuple[str, ...] = (),
        seeds: tuple[int, ...] = (),
        arms: tuple[Arm, ...] = (),
        duration_s: float | None = None,
    ) -> list[Case]:
        """Return the cells; what is given takes the place of the plan's own, and `scenarios` leaves others out.

        Raises:
            ValueError: an unknown scenario or policy, or nothing is left.
        """
        for name in policies:
            make_policy(name)
        wanted = {one.name for selector in scenarios for one in select(selector)}
        found = [
            Case(scenario=scenario, policy=policy, seed=seed, arm=arm)
            for seed in seeds or self.seeds
            for block in self.blocks
            for scenario in _scenarios(block, duration_s)
            if not scenarios or scenario.name in wanted
            for policy in policies or _policies(block)
            for arm in arms or self.arms
        ]
        if not found:
            raise ValueError(f"grid {self.name} has none of {', '.join(sorted(wanted))}")
        return found


def _scenarios(block: Block, duration_s: float | None) -> Iterator[Scenario]:
    for selector in block.scenarios:
        for scenario in select(selector):
            yield shortened(scenario, duration_s or block.duration_s)


def _policies(block: Block) -> tuple[str, ...]:
    """The block's policies that there are."""
    known = (*POLICIES, ORACLE)
    return tuple(name for name in block.policies if name in known) if block.policies else known


def shortened(scenario: Scenario, duration_s: float | None) -> Scenario:
    """Return the scenario with another duration, unless that would cut off a fault or what is measured."""
    if duration_s is None:
        return scenario
    ends_s = [fault.until_ms / 1000.0 for fault in scenario.faults]
    if scenario.measured_s is not None:
        ends_s.append(scenario.measured_s[1])
    return scenario.shortened(duration_s) if duration_s >= max(ends_s, default=0.0) else scenario


def _core(scenarios: str, *others: str, duration_s: float | None = None) -> Block:
    return Block(scenarios=tuple(scenarios.split()), policies=(SUBJECT, BASE, *others), duration_s=duration_s)


# Baselines are those that came near the best one of the family in a scan of all policies (one seed, 2026-11-30), and
# those that a bar names. Durations are as long as a p99 needs with ten seeds; faults keep theirs.
CORE_BLOCKS: Final = (
    _core("s1-u50 s1-u70 s1-u85", ORACLE, "least-awaiting", "round-robin", duration_s=70.0),
    _core("s2-u85 s2-u90 s2-u95 s2-u100 s2-u110", ORACLE, "least-awaiting", duration_s=70.0),
    _core("s3-mixed", ORACLE, "least-awaiting", "health-ramp", duration_s=120.0),
    _core("s4-burst", ORACLE, "health", "round-robin", "least-awaiting", duration_s=240.0),
    _core("s5-long", ORACLE, "least-awaiting", "vllm-dp", duration_s=140.0),
    _core("s6-kv", ORACLE, "health-ramp", "peak-ewma-decay", "dynamo", duration_s=180.0),
    _core("s7-healthy", "round-robin", duration_s=95.0),
    _core("s7-step s7-step-r1", ORACLE, "round-robin", "prequal", "health-ramp", duration_s=110.0),
    _core("s7-mixture s7-ramp s7-mild s7-engines", ORACLE, "health-ramp", duration_s=110.0),
    _core("s8-all", ORACLE, "envoy-least-request", "health-ramp", duration_s=110.0),
    _core("s8-third", "health-ramp", duration_s=110.0),
    _core("s9-crash", "least-awaiting", "health-ramp", duration_s=120.0),
    _core("s9-join", "least-awaiting", duration_s=105.0),
    _core("s10-stale-50 s10-stale-250 s10-stale-1000 s10-stale-5000", "least-awaiting", duration_s=60.0),
    _core("s10-disorder s10-skew", "least-awaiting", duration_s=60.0),
    _core("s10-stall", "least-awaiting", duration_s=130.0),
    _core("s11-r1 s11-r8", "least-awaiting", duration_s=70.0),
    _core("s11-r32", duration_s=60.0),
    _core("s12-32b-conversation-x2 s12-32b-synthetic-x2", ORACLE, *PREFIX_AWARE),
    _core("s12-8b-conversation-x2 s12-8b-synthetic-x2", ORACLE, *PREFIX_AWARE, duration_s=150.0),
    _core("s13-overload", "least-awaiting", "health-ramp"),
    _core("headline-sick", ORACLE, "least-awaiting", "health-ramp"),
    _core("headline-load-90 headline-load-110 headline-engines-7 headline-engines-9 headline-fail", ORACLE),
)

# Short cells for CI; their bars are in `quick.py`.
_USABLE = (BASE, SUBJECT, "health-ramp", "least-awaiting")
QUICK_BLOCKS: Final = (
    Block(scenarios=("s1-u85", "s3-mixed", "s5-long", "s10-stale-1000"), policies=_USABLE, duration_s=45.0),
    Block(scenarios=("s6-kv",), policies=_USABLE, duration_s=60.0),
    Block(scenarios=("s7-step",), policies=(*_USABLE, "peak-ewma-decay"), duration_s=105.0),
    Block(scenarios=("s8-all",), policies=(*_USABLE, "peak-ewma-decay"), duration_s=95.0),
)

CUSTOM: Final = Plan(name="custom", blocks=(Block(scenarios=tuple(SCENARIOS)),))
PLANS: Final = {
    plan.name: plan
    for plan in (
        Plan(name="full", blocks=(Block(scenarios=tuple(SCENARIOS)),), arms=("equal", "bare")),
        Plan(name="core", blocks=CORE_BLOCKS),
        Plan(name="quick", blocks=QUICK_BLOCKS, seeds=(1, 2)),
        CUSTOM,
    )
}
