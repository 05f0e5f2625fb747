"""When would this request get its first token there? A roll-forward of an engine on counters, with the truth in hand.

The engine's scheduler is repeated step by step: first-come admission into the step budget, sequences and blocks freed
when decoders finish (their true output lengths are known). Preemptions are not foreseen, and blocks that decoders take
are counted as a sixteenth of a block per step.
"""

from collections.abc import Sequence
from typing import NamedTuple

from evenload.sim.engine import Engine
from evenload.sim.instance import Instance
from evenload.sim.jobs import Job
from evenload.sim.presets import BLOCK_TOKENS, EnginePreset
from evenload.sim.provider import Provider

STEPS_MAX = 5_000


class Outlook(NamedTuple):
    """What would happen.

    Attributes:
        first_token_ms: when, in absolute time.
        work_ms: by how much the request's own prefill lengthens the engine's work.
        awaiting: requests before it that still await their first token.
    """

    first_token_ms: float
    work_ms: float
    awaiting: int


def unloaded_ttft_ms(machine: EnginePreset, prompt_tokens: int) -> float:
    """TTFT of a request alone on an engine."""
    total_ms, done = 0.0, 0
    while done < prompt_tokens:
        chunk = min(machine.step_budget, prompt_tokens - done)
        total_ms += machine.step_ms(
            decoders=0, prefill_tokens=chunk, kv_read=0, attention_work=chunk * (done + chunk / 2)
        )
        done += chunk
    return total_ms


def outlook(engine: Engine, job: Job, now_ms: float) -> Outlook:
    """Roll an engine forward until a request that comes now has its first token."""
    # A friend of the engine: it reads private counters, so that the engine need not keep copies for it.
    machine = engine.preset
    factor = engine._slowdown
    run, step = engine._run, engine._decode_step
    decoders, kv_read, free = engine._decoders, float(engine._kv_read), float(engine._free_blocks)
    cached = min(
        engine._prefixes.cached_blocks(job.hashes) * BLOCK_TOKENS if job.hashes else 0,
        (job.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS,
    )
    queue: list[list[float]] = []  # [tokens to compute, tokens computed, blocks held]
    at_ms = now_ms
    running = len(engine._running)
    if run is not None:
        at_ms = max(now_ms, run.end_ms(run.done + 1))
        step += 1 if decoders else 0
        for sequence, tokens in run.chunks:
            if sequence.gone:
                continue
            left = sequence.target - sequence.computed - tokens
            if left > 0:
                queue.append([left, sequence.computed + tokens, 1.0])
            else:
                decoders += 1
                kv_read += sequence.target
    partials = len(queue)
    queue += [[float(sequence.target), 0.0, 0.0] for sequence in engine._waiting]
    own = [float(job.prompt_tokens - cached), float(cached), 0.0]
    awaiting = len(queue)
    queue.append(own)
    own_ms = machine.per_token_ms * own[0] + machine.attention_ms * own[0] * (cached + own[0] / 2)
    finishes = sorted((due, s) for due, _, s in engine._finishes if not s.gone and s.finish_step == due)
    finishes_at = 0
    head = 0
    for _ in range(STEPS_MAX):
        while finishes_at < len(finishes) and finishes[finishes_at][0] <= step:
            sequence = finishes[finishes_at][1]
            finishes_at += 1
            tokens = sequence.kv_tokens(step)
            decoders -= 1
            running -= 1
            kv_read -= tokens
            free += tokens / BLOCK_TOKENS
        budget = float(machine.step_budget - decoders)
        work = prefill = 0.0
        done = head
        while done < len(queue) and budget > 0:
            item = queue[done]
            tokens_now = min(budget, item[0])
            if not item[2]:
                if running >= machine.seqs_max or tokens_now > free * BLOCK_TOKENS:
                    break
                running += 1
                item[2] = 1.0
            elif done >= partials and tokens_now > free * BLOCK_TOKENS:
                break
            free -= tokens_now / BLOCK_TOKENS
            work += tokens_now * (item[1] + tokens_now / 2)
            prefill += tokens_now
            budget -= tokens_now
            item[0] -= tokens_now
            item[1] += tokens_now
            if item[0] > 0:
                break
            done += 1
        steps = 1
        if not prefill and finishes_at < len(finishes):
            steps = max(1, finishes[finishes_at][0] - step)
        first_ms = factor * machine.step_ms(
            decoders=decoders, prefill_tokens=int(prefill), kv_read=int(kv_read), attention_work=work
        )
        slope_ms = factor * machine.per_kv_token_us * 1e-3 * decoders
        at_ms += steps * first_ms + slope_ms * (steps * (steps - 1) / 2)
        step += steps
        kv_read += steps * decoders
        free -= steps * decoders / BLOCK_TOKENS
        for item in queue[head:done]:
            decoders += 1
            kv_read += item[1]
        head = done
        if head == len(queue):
            break
    return Outlook(at_ms, factor * own_ms, awaiting)


def healthy_ttft_ms(instances: Sequence[Instance], job: Job, now_ms: float) -> float | None:
    """TTFT that a typical healthy instance would give now: the median of those without a fault; None without any."""
    found: list[float] = []
    for instance in instances:
        if instance.faulty:
            continue
        core = instance.core
        if isinstance(core, Provider):
            found.append(core.healthy_ttft_ms(job.noise))
        else:
            core.advance_to(now_ms)
            found.append(outlook(core, job, now_ms).first_token_ms - now_ms)
    return sorted(found)[len(found) // 2] if found else None
