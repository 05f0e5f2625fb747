"""S1: a healthy, equal fleet under steady load. Honesty: at half load a tie is expected."""

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Scenario, engines

SCENARIOS = tuple(
    Scenario(
        name=f"s1-u{percent}",
        family="S1",
        shows=f"a healthy fleet at {percent} % of its capacity",
        fleet=engines("h100-8b", 8),
        workload=Workload(trace="azure-conv", utilisation=percent / 100),
    )
    for percent in (50, 70, 85)
)
