"""The quick comparison's own bars."""

from math import inf

import pytest

from evenload.bench.plans import QUICK_BLOCKS
from evenload.bench.quick import BARS as QUICK_BARS
from evenload.bench.quick import Bar, check
from evenload.sim.scenarios import select
from tests.bench.made import cell

ABSOLUTE = Bar("s7-step", "health-ramp", "t95_s", 3.0)
RELATIVE = Bar("s1-u85", "health-ramp", "ttft_p99_ms", 1.1, over="least-connections")


@pytest.mark.parametrize(("found", "holds"), [(3.0, True), (3.1, False), (inf, False)])
def test_a_bar_is_the_most_that_the_median_may_be(found: float, holds: bool) -> None:
    cells = [cell("s7-step", "health-ramp", seed, t95_s=found) for seed in (1, 2)]
    (result,) = check(cells, [ABSOLUTE])
    assert result.holds is holds
    assert str(result) == f"s7-step health-ramp: t95_s is {found:g}, at most 3 is allowed"


@pytest.mark.parametrize(("mine", "holds"), [(110.0, True), (111.0, False)])
def test_a_bar_may_be_relative_to_another_policy(mine: float, holds: bool) -> None:
    cells = [cell("s1-u85", "health-ramp", ttft_p99_ms=mine), cell("s1-u85", "least-connections", ttft_p99_ms=100.0)]
    (result,) = check(cells, [RELATIVE])
    assert result.holds is holds


def test_a_bar_whose_cells_were_left_out_is_silent_but_one_that_lacks_its_base_is_missed() -> None:
    assert check([], [ABSOLUTE, RELATIVE]) == []
    (result,) = check([cell("s1-u85", "health-ramp", ttft_p99_ms=1.0)], [RELATIVE])
    assert not result.holds


def test_the_quick_grid_has_the_cells_of_all_its_bars() -> None:
    ran = {
        (scenario.name, policy)
        for block in QUICK_BLOCKS
        for selector in block.scenarios
        for scenario in select(selector)
        for policy in block.policies
    }
    assert {(bar.scenario, bar.policy) for bar in QUICK_BARS} <= ran
    assert {(bar.scenario, bar.over) for bar in QUICK_BARS if bar.over} <= ran
