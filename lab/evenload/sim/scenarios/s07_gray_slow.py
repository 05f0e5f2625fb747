"""S7: one instance becomes slow without failing, and heals after 60 s. Figures are of the time of the fault."""

from dataclasses import replace

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Fault, InstanceSpec, Scenario, engines

FROM_S, UNTIL_S, END_S = 30.0, 90.0, 150.0
SLOW = Fault(kind="slow", instance=2, from_ms=FROM_S * 1e3, until_ms=UNTIL_S * 1e3, factor=17.5)

_HEALTHY = Scenario(
    name="s7-healthy",
    family="S7",
    shows="six providers at 200 ms, no fault: what the others are measured against",
    fleet=(InstanceSpec(),) * 6,
    workload=Workload(trace="azure-conv", rate_rps=100.0),
    duration_s=END_S,
    measured_s=(FROM_S, UNTIL_S),
)
_STEP = replace(_HEALTHY, name="s7-step", shows="200 to 3500 ms at once, 4 routers", faults=(SLOW,))

SCENARIOS = (
    _HEALTHY,
    _STEP,
    replace(_STEP, name="s7-step-r1", shows="200 to 3500 ms at once, one router", routers=1),
    replace(
        _STEP, name="s7-mixture", shows="a fifth of the requests 17 times slower", faults=(replace(SLOW, share=0.2),)
    ),
    replace(_STEP, name="s7-ramp", shows="200 to 3500 ms within 10 s", faults=(replace(SLOW, ramp_ms=10_000.0),)),
    replace(_STEP, name="s7-mild", shows="200 to 300 ms", faults=(replace(SLOW, factor=1.5),)),
    replace(
        _HEALTHY,
        name="s7-engines",
        shows="one of 8 engines takes 17 times as long per step, 70 %",
        fleet=engines("h100-8b", 8),
        workload=Workload(trace="azure-conv", utilisation=0.70),
        faults=(replace(SLOW, factor=17.0),),
    ),
)
