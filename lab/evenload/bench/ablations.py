"""The parts of `predictive`, each switched off in turn, and the scenarios where it should pay.

`evenload sim compare --scenarios S... --policies 'predictive;predictive:strangers=0'` runs one; `commands` names them
all, and docs/policies.md has what came out.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Ablation:
    """A part of the policy.

    Attributes:
        part: what it is, in a few words.
        spec: the policy without it.
        scenarios: where it should pay.
        figure: by what it is judged, of `evenload.sim.metrics`; less is better.
    """

    part: str
    spec: str
    scenarios: tuple[str, ...]
    figure: str = "ttft_focus_p99_ms"


ABLATIONS: Final = (
    Ablation("words as old as what they lack", "predictive:content_age=0", ("s10-stale-5000", "s10-disorder")),
    Ablation("doubt of few samples", "predictive:few_samples=0", ("s11-r8", "s1-u85", "s3-mixed")),
    Ablation("prompts that begin alike meet", "predictive:home=0", ("s12-32b-synthetic-x2", "s12-32b-conversation-x2")),
    Ablation("long beside the others", "predictive:long_usual=0", ("s12-32b-synthetic-x2", "s5-long")),
    Ablation("requests that await a first token", "predictive:awaiting=0", ("s7-step", "s7-step-r1"), "harmed_share"),
    Ablation("even decoders", "predictive:load=0,load_square=0", ("s1-u85", "s3-mixed"), "tpot_p99_ms"),
    Ablation("each replica's own instances", "predictive:strangers=0", ("s1-u85", "s11-r8", "s3-mixed")),
    Ablation("long prompts where few wait", "predictive:harm_strangers=0", ("s5-long",)),
    Ablation("bases drawn to the median", "predictive:base_spread=0", ("s1-u85", "s3-mixed", "s7-healthy")),
    Ablation("token costs drawn to the median", "predictive:token_spread=0", ("s1-u85", "s3-mixed")),
    Ablation("slowness", "predictive:slow_from=0", ("s7-step", "s7-mixture", "s7-engines"), "harmed_share"),
    Ablation("errors", "predictive:fail_ms=0", ("s8-all", "s8-third"), "fault_share"),
    Ablation("refusals", "predictive:cooling=0", ("s13-overload",), "unserved_share"),
    Ablation("short KV cache", "predictive:kv=0,queue_ms=0", ("s6-kv",), "preemptions"),
    Ablation("full caches explain slowness", "predictive:slow_full=0", ("s6-kv",), "unserved_share"),
    Ablation("cost of overflow", "predictive:kv_most=2", ("s6-kv",), "unserved_share"),
    Ablation("prompts that gauges do not show yet", "predictive:ahead=0", ("s6-kv",)),
    Ablation("re-tests", "predictive:retest_share=0", ("s7-step",), "back90_s"),
    Ablation("re-tests evenly spaced", "predictive:retest_steep=0", ("s7-step", "s7-step-r1"), "back90_s"),
    Ablation("evenness left to chance among many replicas", "predictive:even_share=0", ("s11-r8",)),
    Ablation("wide ties among very many replicas", "predictive:tie_crowded=0", ("s11-r32",)),
    Ablation("ties", "predictive:tie=0", ("s1-u85", "s10-stale-5000")),
)


def commands(seeds: int = 3, duration_s: float = 60.0) -> list[str]:
    """Return the command of each ablation; scenarios without faults are shortened."""
    return [
        f"evenload sim compare --scenarios {','.join(one.scenarios)} --policies 'predictive;{one.spec}' "
        f"--seeds {seeds} --duration {duration_s:g}"
        for one in ABLATIONS
    ]
