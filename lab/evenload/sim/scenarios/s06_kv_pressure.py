"""S6: a KV cache of 60k tokens and long answers.

The queue is bounded and answers 429. A worker that holds requests for more than twice its cache dies (a stand-in for
out of memory, `crash_overload`): twice is where least-connections gets to for moments (at most 2.3 times in 300 s,
random 2.8 times), so a router that does better has something to show.
"""

from evenload.sim.jobs import Workload
from evenload.sim.scenario import Scenario, engines

KV_TOKENS = 60_000

SCENARIOS = (
    Scenario(
        name="s6-kv",
        family="S6",
        shows="preemptions, rejections and crashes when the KV cache is short, 90 %",
        fleet=engines("a100-8b", 8, KV_TOKENS, queue_max=64, queued_tokens_max=120_000, crash_overload=2.0),
        workload=Workload(trace="deepseek-r1", utilisation=0.90, tokens_max=KV_TOKENS // 2),
        duration_s=300.0,
        warmup_s=60.0,
        notes=("sizes are cut so that a request fits half of the cache",),
    ),
)
