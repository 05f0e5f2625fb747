"""S3: three kinds of machines: does each get the share that it can carry?"""

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Scenario, engines

SCENARIOS = (
    Scenario(
        name="s3-mixed",
        family="S3",
        shows="share against capacity share on unequal machines, 85 %",
        fleet=engines("h100-8b", 3) + engines("a100-8b", 3) + engines("l40s-8b", 2),
        workload=Workload(trace="m-large", utilisation=0.85),
    ),
)
