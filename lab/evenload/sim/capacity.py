"""How many requests per second an engine can complete, in closed form, to scale loads to a utilisation.

With `n` sequences decoding, a step yields n tokens and, in the long run, admits n/output requests' prompts. Hence

    T(n) = fixed + max(memory, per_token * n * (1 + prompt/output)) + per_kv * n * KV + per_seq * n
           + attention * n/output * E[prompt^2]/2
    rate(n) = n / (output * T(n))        for the largest n that sequences, KV cache and step budget allow

with the workload's means, KV being the mean of prompt + output/2 over running sequences (weighted by output: long
answers stay longer). It is the saturated throughput: where waiting grows without bound. Prefix hits are not counted.
"""

from collections.abc import Sequence

from evenload.sim.jobs import Row
from evenload.sim.presets import EnginePreset


def capacity_rps(machine: EnginePreset, rows: Sequence[Row]) -> float:
    """Return the saturated throughput of one engine, requests per second."""
    count = len(rows)
    output = sum(row.output_tokens for row in rows) / count
    prompt = sum(row.prompt_tokens for row in rows) / count
    square = sum(row.prompt_tokens**2 for row in rows) / count
    kv_each = sum(row.output_tokens * (row.prompt_tokens + row.output_tokens / 2) for row in rows) / count / output
    running = min(float(machine.seqs_max), machine.kv_tokens / kv_each, machine.step_budget / (1 + prompt / output))
    tokens = running * (1 + prompt / output)
    step_ms = (
        machine.fixed_ms
        + max(machine.memory_ms, machine.per_token_ms * tokens)
        + machine.per_kv_token_us * 1e-3 * running * kv_each
        + machine.per_seq_ms * running
        + machine.attention_ms * running / output * square / 2
    )
    return 1000.0 * running / (output * step_ms)
