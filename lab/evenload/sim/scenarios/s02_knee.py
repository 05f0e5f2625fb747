"""S2: where goodput breaks: load from 60 to 110 %, goodput and effective tokens/s at a fixed SLO."""

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Scenario, engines

SCENARIOS = tuple(
    Scenario(
        name=f"s2-u{percent}",
        family="S2",
        shows=f"goodput at {percent} % of capacity",
        fleet=engines("h100-8b", 8),
        aim="goodput",
        workload=Workload(trace="azure-conv", utilisation=percent / 100),
    )
    for percent in (60, 65, 70, 75, 80, 85, 90, 95, 100, 110)
)
