"""Small scenarios and jobs for tests of the simulation."""

from dataclasses import replace
from random import Random

from evenload.sim import synthetic
from evenload.sim.jobs import Job, Workload, arrivals
from evenload.sim.scenario import Arm, Case, Fault, InstanceSpec, Scenario, engines

WORKLOAD = Workload(trace="azure-conv", rate_rps=40.0)
FLEET = Scenario(
    name="s1-u70",
    family="S1",
    shows="a small fleet for tests",
    fleet=engines("h100-8b", 4),
    workload=WORKLOAD,
    routers=2,
    duration_s=20.0,
    warmup_s=2.0,
)
PROVIDERS = replace(FLEET, fleet=(InstanceSpec(),) * 4, duration_s=40.0)


def jobs_of(scenario: Scenario, seed: int = 1) -> list[Job]:
    """Jobs by distribution, whether the public traces are there or not."""
    workload = scenario.workload
    assert workload.rate_rps is not None
    rows = synthetic.rows(workload.trace)
    return arrivals(workload, rows, workload.rate_rps, scenario.duration_s, Random(f"{workload.trace}/{seed}"))


def case(scenario: Scenario, policy: str = "least-connections", seed: int = 1, arm: Arm = "equal") -> Case:
    return Case(scenario=scenario, policy=policy, seed=seed, arm=arm)


def with_fault(scenario: Scenario, fault: Fault) -> Scenario:
    return replace(scenario, faults=(fault,))
