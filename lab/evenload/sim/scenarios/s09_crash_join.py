"""S9: one engine is killed and back, cold, after 60 s; another one is new."""

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Fault, Scenario, engines

SCENARIOS = (
    Scenario(
        name="s9-crash",
        family="S9",
        shows="one of 8 engines is killed and back after 60 s, 75 %",
        fleet=engines("h100-8b", 8),
        workload=Workload(trace="m-large", utilisation=0.75),
        duration_s=150.0,
        measured_s=(25.0, 120.0),
        faults=(Fault(kind="crash", instance=2, from_ms=30e3, until_ms=90e3),),
    ),
    Scenario(
        name="s9-join",
        family="S9",
        shows="an eighth engine joins after 60 s: the herd on the newcomer",
        fleet=engines("h100-8b", 7) + engines("h100-8b", 1, joins_at_ms=60e3),
        workload=Workload(trace="m-large", utilisation=0.75),
        duration_s=120.0,
        measured_s=(55.0, 100.0),
    ),
)
