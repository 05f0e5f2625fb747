"""Grids: which cells, how long, what they cost, and the command that repeats one."""

import shlex
from pathlib import Path

import pytest

from evenload.bench.bars import judge
from evenload.bench.costs import case_s, estimates
from evenload.bench.grid import case_key
from evenload.bench.inputs import jobs_of
from evenload.bench.main import Request
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
            seeds=(int(options["--seeds"].removesuffix(",")),),  # the comma makes it one, not so many
            duration_s=float(options["--duration"]) if "--duration" in options else None,
        )
        assert again == [case]


def test_kept_results_cost_nothing() -> None:
    cases = PLANS["core"].cases(scenarios=("s3-mixed",))
    (all_kept,) = estimates(cases, lambda _: True)
    (none_kept,) = estimates(cases, lambda _: False)
    assert (all_kept.cpu_s, all_kept.kept) == (0.0, len(cases))
    assert none_kept.cpu_s == pytest.approx(sum(map(case_s, cases)))


def test_requests_of_ones_own_take_the_place_of_a_scenarios_trace(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,20\n0.5,2000,200\n1.5,300,50\n", encoding="utf-8")
    request = Request(scenarios=("s1-u70",), policies=("random",), seeds=(3,), workload=path, rate_rps=12.5)
    (case,) = request.cases()
    jobs = jobs_of(tmp_path, case.scenario, case.seed)
    assert {(job.prompt_tokens, job.output_tokens) for job in jobs} == {(100, 20), (2000, 200), (300, 50)}
    assert len(jobs) / case.scenario.duration_s == pytest.approx(12.5, rel=0.1)
    words = shlex.split(case.command)
    assert words[words.index("--workload") + 1] == str(path)
    assert words[words.index("--rate") + 1] == "12.5"
    key = case_key(case, tmp_path)
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,20\n0.5,2000,200\n1.5,300,51\n", encoding="utf-8")
    assert case_key(case, tmp_path) != key  # an edited file is another workload


def test_a_malformed_file_of_ones_own_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,20\n1,many,20\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"own\.csv:3: .*many"):
        Request(scenarios=("s1-u70",), workload=path).cases()
    with pytest.raises(ValueError, match=r"positive; got \[nan\]"):
        Request(scenarios=("s1-u70",), rate_rps=float("nan")).cases()
