"""S4: bursts (inter-arrival CV 13) at a low mean load."""

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Scenario, engines

SCENARIOS = (
    Scenario(
        name="s4-burst",
        family="S4",
        shows="bursty code completions, mean load 35 %",
        fleet=engines("a100-8b", 8),
        workload=Workload(trace="azure-code", utilisation=0.35),
        duration_s=300.0,
    ),
)
