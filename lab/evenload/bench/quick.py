"""What the quick comparison must show, so that a change that breaks routing does not pass unseen.

The bars are wide: two seeds of short cells say that something is broken, not which of two good policies is better.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from evenload.bench.evidence import Evidence
from evenload.bench.grid import Cell
from evenload.bench.plans import BASE, SUBJECT
from evenload.routing import POLICIES


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure's median over seeds, or the median ratio to the same figure of the policy `over`, is at most `most`."""

    scenario: str
    policy: str
    figure: str
    most: float
    over: str = ""


@dataclass(frozen=True, slots=True)
class BarResult:
    """A bar and the figure it met."""

    bar: Bar
    found: float

    @property
    def holds(self) -> bool:
        """Whether it does; a figure that is no number does not."""
        return self.found <= self.bar.most

    def __str__(self) -> str:
        bar, over = self.bar, f" over {self.bar.over}'s" if self.bar.over else ""
        return f"{bar.scenario} {bar.policy}: {bar.figure}{over} is {self.found:g}, at most {bar.most:g} is allowed"


def _usable(policy: str) -> tuple[Bar, ...]:
    """What anything that production may run must do."""
    return (
        Bar("s1-u85", policy, "unserved_share", 0.0),
        Bar("s6-kv", policy, "crashes", 0.0),
        Bar("s7-step", policy, "harmed_share", 0.02),
        Bar("s7-step", policy, "t95_s", 3.0),
        Bar("s7-step", policy, "fault_ttft_p99_ms", 1500.0),
        Bar("s8-all", policy, "fault_unserved_share", 0.001),
        Bar("s8-all", policy, "fault_share", 0.03),
    )


def _default(policy: str) -> tuple[Bar, ...]:
    """What the default must do beyond that."""
    return (
        Bar("s1-u85", policy, "ttft_p99_ms", 1.10, over=BASE),
        Bar("s3-mixed", policy, "ttft_p99_ms", 1.0, over=BASE),
        Bar("s5-long", policy, "ttft_focus_p99_ms", 1.0, over=BASE),
        Bar("s6-kv", policy, "ttft_p99_ms", 1.0, over=BASE),
        Bar("s7-step", policy, "t95_s", 1.0),
        Bar("s7-step", policy, "harmed_share", 0.006),
        Bar("s7-step", policy, "fault_ttft_p99_ms", 700.0),
        Bar("s10-stale-1000", policy, "ttft_p99_ms", 1.2, over="least-awaiting"),
    )


BARS: Final = tuple(
    bar
    for bar in (*_usable("health-ramp"), *_usable(SUBJECT), *_default(SUBJECT))
    if bar.policy in POLICIES  # one that this build has
)


def check(cells: Sequence[Cell], bars: Sequence[Bar] = BARS) -> list[BarResult]:
    """Return the bars whose cells are there, each with the figure it met."""
    evidence = Evidence(cells)
    return [BarResult(bar, _found(evidence, bar)) for bar in bars if evidence.seeds((bar.scenario, bar.policy))]


def _found(evidence: Evidence, bar: Bar) -> float:
    """The figure; NaN when the policy that it is compared with did not run."""
    mine, other = (bar.scenario, bar.policy), (bar.scenario, bar.over or bar.policy)
    median = evidence.median(*mine, bar.figure)
    statistic = evidence.ratio((*mine, bar.figure), (*other, bar.figure)) if bar.over else median
    return statistic(evidence.seeds(mine, other))
