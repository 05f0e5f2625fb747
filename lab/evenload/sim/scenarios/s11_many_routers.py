"""S11: the same load over 1 to 32 router replicas, each of which sees only its own part at once."""

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Scenario, engines

SCENARIOS = tuple(
    Scenario(
        name=f"s11-r{routers}",
        family="S11",
        shows=f"16 engines behind {routers} router{'s' if routers > 1 else ''}, 85 %",
        fleet=engines("h100-8b", 16),
        workload=Workload(trace="azure-conv", utilisation=0.85),
        routers=routers,
        duration_s=120.0,
    )
    for routers in (1, 2, 4, 8, 32)
)
