"""S5: 2 % of prompts have 32k to 64k tokens; the figure is the p99 TTFT of the short ones."""

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Scenario, engines

SCENARIOS = (
    Scenario(
        name="s5-long",
        family="S5",
        shows="short requests beside 2 % prompts of 32k and more, 80 %",
        fleet=engines("h100-8b", 8),
        workload=Workload(trace="azure-conv", utilisation=0.80, long_share=0.02),
        focus="short",
    ),
)
