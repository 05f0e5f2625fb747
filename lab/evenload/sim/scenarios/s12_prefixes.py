"""S12: shared prefixes (Mooncake), at the recorded speed and at twice, also on the model of a published result.

prequal-rs publishes for the conversation at 2 x on 16 h100x2-qwen32b a p99 TTFT of 5.0 s, for synthetic 3.8 s.
"""

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Scenario, engines

SCENARIOS = tuple(
    Scenario(
        name=f"s12-{short}-{what}-x{factor}",
        family="S12",
        shows=f"Mooncake {what} at {factor} x on 16 {machine}",
        fleet=engines(machine, 16, prefix_cache=True),
        workload=Workload(trace=f"mooncake-{what}", time_factor=float(factor), scaling="compress"),
        duration_s=300.0,
        warmup_s=30.0,
        client_timeout_s=120.0,
    )
    for short, machine in (("8b", "h100-8b"), ("32b", "h100x2-qwen32b"))
    for what in ("conversation", "synthetic")
    for factor in (1, 2)
)
