"""Grids: which cells, how long, what they cost, and the command that repeats one."""

import shlex

import pytest

from evenload.bench.bars import judge
from evenload.bench.costs import case_s, estimates
from evenload.bench.plans import CORE_BLOCKS, CUSTOM, PLANS, QUICK_BLOCKS, SUBJECT, Block, shortened
from evenload.routing import POLICIES
from evenload.sim.policies import ORACLE
from evenload.sim.scenarios import SCENARIOS, select
from tests.bench.made import cell

FIGURES = {
    "ttft_p99_ms": 100.0,
    "ttft_focus_p99_ms": 100.0,
    "t95_s": 0.1,
    "fault_ttft_p99_ms": 100.0,
    "harmed_share": 0.0,
    "fault_probe_share": 0.0,
    "fault_unserved_share": 0.0,
    "fault_share": 0.0,
    "back90_s": 5.0,
    "overshoot": 1.0,
    "crashes": 0.0,
    "preemptions": 0.0,
    "effective_tps": 1.0,
}


def pairs(blocks: tuple[Block, ...]) -> list[tuple[str, str]]:
    return [
        (scenario.name, policy)
        for block in blocks
        for selector in block.scenarios
        for scenario in select(selector)
        for policy in block.policies
    ]


def test_the_core_grid_has_a_cell_for_every_bar() -> None:
    made = []
    for name, policy in pairs(CORE_BLOCKS):
        figures = dict(FIGURES)
        if policy == "least-connections":
            figures |= {"ttft_p99_ms": 300.0, "ttft_focus_p99_ms": 300.0, "preemptions": 10.0}
        load = float(name[4:]) if name.startswith("s2-u") else 0.0
        figures |= {"goodput_rps": load, "attainment": 1.0 if load <= 85.0 else 0.9}
        made.append(cell(name, policy, 1, figures))
    assert [f"{one.family} {one.asks}: {one.note}" for one in judge(made) if one.outcome == "not run"] == []


@pytest.mark.parametrize("blocks", [CORE_BLOCKS, QUICK_BLOCKS])
def test_a_grid_names_no_cell_twice_and_only_policies_that_exist(blocks: tuple[Block, ...]) -> None:
    found = pairs(blocks)
    assert len(found) == len(set(found))
    assert {policy for _, policy in found} <= {*POLICIES, ORACLE, SUBJECT}


def test_the_core_grid_fits_into_ninety_minutes_and_the_quick_one_into_three() -> None:
    for name, minutes in (("core", 90), ("quick", 3)):
        cpu_s = sum(one.cpu_s for one in estimates(PLANS[name].cases(), lambda _: False))
        assert cpu_s / 2 / 60 <= minutes, name


def test_seeds_go_round_outermost_so_that_an_interrupted_grid_has_some_of_everything() -> None:
    seeds = [case.seed for case in PLANS["core"].cases()]
    assert seeds == sorted(seeds)
    assert set(seeds) == set(range(1, 11))


def test_the_full_grid_has_every_scenario_policy_and_arm() -> None:
    cases = PLANS["full"].cases(seeds=(1,))
    found = {(case.scenario.name, case.policy, case.arm) for case in cases}
    assert len(found) == len(SCENARIOS) * (len(POLICIES) + 1) * 2


def test_what_is_given_takes_the_place_of_the_grids_own() -> None:
    cases = PLANS["core"].cases(scenarios=("S7", "s3-mixed"), policies=("random",), seeds=(4,), arms=("bare",))
    assert {case.scenario.family for case in cases} == {"S3", "S7"}
    assert {(case.policy, case.seed, case.arm) for case in cases} == {("random", 4, "bare")}
    with pytest.raises(ValueError, match="grid quick has none of s4-burst"):
        PLANS["quick"].cases(scenarios=("s4-burst",))
    with pytest.raises(ValueError, match="no policy 'nobody'"):
        PLANS["quick"].cases(policies=("nobody",))


def test_no_fault_and_nothing_measured_is_cut_off() -> None:
    step, steady = SCENARIOS["s7-step"], SCENARIOS["s1-u85"]
    assert shortened(step, 60.0) is step  # its fault lasts until 90 s
    assert shortened(step, 110.0).duration_s == 110.0
    assert shortened(step, 110.0).measured_s == step.measured_s
    assert shortened(SCENARIOS["s13-overload"], 100.0).duration_s == 180.0  # measured until then
    assert shortened(steady, 60.0).duration_s == 60.0


def test_the_replay_command_gives_the_very_case() -> None:
    for case in PLANS["core"].cases(seeds=(3,)):
        words = shlex.split(case.command)
        options = dict(zip(words[4::2], words[5::2], strict=True))
        again = CUSTOM.cases(
            scenarios=(words[3],),
            policies=(options["--policy"],),
            seeds=(int(options["--seeds"]),),
            duration_s=float(options["--duration"]) if "--duration" in options else None,
        )
        assert again == [case]


def test_kept_results_cost_nothing() -> None:
    cases = PLANS["core"].cases(scenarios=("s3-mixed",))
    (all_kept,) = estimates(cases, lambda _: True)
    (none_kept,) = estimates(cases, lambda _: False)
    assert (all_kept.cpu_s, all_kept.kept) == (0.0, len(cases))
    assert none_kept.cpu_s == pytest.approx(sum(map(case_s, cases)))
