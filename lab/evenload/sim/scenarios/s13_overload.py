"""S13: 130 % of capacity for 60 s, and clients who come again twice when they were refused."""

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Scenario, engines

SCENARIOS = (
    Scenario(
        name="s13-overload",
        family="S13",
        shows="1.3 x capacity for 60 s from 70 %, then 70 % again; bounded queues, clients retry twice",
        fleet=engines("h100-8b", 8, queue_max=128),
        aim="goodput",
        workload=Workload(trace="azure-conv", utilisation=0.70, phases=((30.0, 1.0), (90.0, 1.3 / 0.7), (1e9, 1.0))),
        duration_s=180.0,
        measured_s=(30.0, 180.0),
        client_retries=2,
    ),
)
