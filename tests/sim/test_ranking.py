"""Coefficients are known to about 25 %: conclusions must not hang on them."""

from dataclasses import replace
from random import Random

import pytest

from evenload.sim import synthetic
from evenload.sim.capacity import capacity_rps
from evenload.sim.jobs import Workload, arrivals
from evenload.sim.metrics import figures
from evenload.sim.presets import EnginePreset, preset
from evenload.sim.scenario import InstanceSpec
from evenload.sim.simulation import simulate
from tests.sim.fleets import FLEET, case

COEFFICIENTS = ("memory_ms", "per_token_ms", "per_seq_ms", "per_kv_token_us", "attention_ms")
ROWS = synthetic.rows("azure-conv")


def machine_with(name: str, factor: float) -> EnginePreset:
    return replace(preset("h100-8b"), **{name: getattr(preset("h100-8b"), name) * factor})


def p99s(machine: EnginePreset) -> dict[str, float]:
    """p99 TTFT by policy on four such engines at 80 % of what they can do, so that all machines are as busy."""
    rate = 0.8 * 4 * capacity_rps(machine, ROWS)
    scenario = replace(FLEET, fleet=(InstanceSpec(machine=machine),) * 4, duration_s=25.0)
    jobs = arrivals(Workload(trace="azure-conv", rate_rps=rate), ROWS, rate, scenario.duration_s, Random("ranking"))
    return {
        policy: figures(simulate(case(scenario, policy), jobs))["ttft_p99_ms"]
        for policy in ("oracle", "predictive", "least-connections", "random")
    }


@pytest.mark.parametrize("factor", [0.75, 1.25])
@pytest.mark.parametrize("name", COEFFICIENTS)
def test_a_quarter_more_or_less_does_not_flip_the_ranking(name: str, factor: float) -> None:
    found = p99s(machine_with(name, factor))
    assert sorted(found, key=lambda policy: found[policy]) == ["oracle", "predictive", "least-connections", "random"]
