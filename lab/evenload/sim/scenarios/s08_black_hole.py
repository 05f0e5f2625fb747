"""S8: one instance fails within 5 ms, so it looks idle and fast."""

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Fault, Scenario, engines

SCENARIOS = tuple(
    Scenario(
        name=name,
        family="S8",
        shows=f"one of 8 engines fails {share:.0%} of its requests within 5 ms, 70 %",
        fleet=engines("h100-8b", 8),
        workload=Workload(trace="azure-conv", utilisation=0.70),
        duration_s=150.0,
        measured_s=(30.0, 90.0),
        faults=(Fault(kind="fail", instance=2, from_ms=30e3, until_ms=90e3, share=share),),
    )
    for name, share in (("s8-all", 1.0), ("s8-third", 0.3))
)
