"""When would this request get its first token there? A roll-forward of an engine on counters, with the truth in hand.

The engine's scheduler is repeated step by step: first-come admission into the step budget, sequences and blocks freed
when decoders finish (their true output lengths are known). Preemptions are not foreseen, and the cache is counted in
tokens, not in blocks.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from evenload.sim.engine import Engine
from evenload.sim.instance import Instance
from evenload.sim.jobs import Job
from evenload.sim.presets import BLOCK_TOKENS, EnginePreset
from evenload.sim.provider import Provider
from evenload.sim.sequence import Sequence

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


def unloaded_ttft_ms(machine: EnginePreset, prompt_tokens: int, cached_tokens: int = 0) -> float:
    """TTFT of a request alone on an engine that has computed the first `cached_tokens` of its prompt before."""
    total_ms, done = 0.0, cached_tokens
    while done < prompt_tokens:
        chunk = min(machine.step_budget, prompt_tokens - done)
        total_ms += machine.step_ms(
            decoders=0, prefill_tokens=chunk, kv_read=0, attention_work=chunk * (done + chunk / 2)
        )
        done += chunk
    return total_ms


def usable_tokens(cached_tokens: int, prompt_tokens: int) -> int:
    """Prompt tokens that need no computing: whole blocks of what is cached, and never the last token."""
    return min(cached_tokens, (prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS)


class _Roll:
    """An engine on counters. A friend of the engine: it reads private ones, so that the engine keeps no copies for it.

    The queue has `[tokens to compute, tokens computed, whether it holds a place, output tokens to come]` in order of
    service.
    """

    def __init__(self, engine: Engine, job: Job, now_ms: float) -> None:
        self.machine = engine.preset
        self.factor = engine._slowdown
        self.step = engine._decode_step
        self.decoders = engine._decoders
        self.kv_read = float(engine._kv_read)
        self.free_tokens = float(engine._free_blocks * BLOCK_TOKENS)
        self.running = len(engine._running)
        self.finishes = engine._finishes.copy()  # a heap, with entries of sequences that have gone since
        self.joined: list[tuple[int, int, float]] = []  # a heap of those that join on the way: due, order, cache then
        self.order = 0
        self.at_ms = now_ms
        self.queue: list[list[float]] = []
        if engine._run is not None:
            self._rest_of_step(engine, now_ms)
        self.queue += [[float(one.target), 0.0, 0.0, _output_left(one)] for one in engine._waiting]
        self.awaiting = len(self.queue)
        cached = engine._prefixes.cached_blocks(job.hashes) * BLOCK_TOKENS if job.hashes else 0
        cached = usable_tokens(cached, job.prompt_tokens)
        own = float(job.prompt_tokens - cached)
        self.queue.append([own, float(cached), 0.0, 0.0])
        self.work_ms = self.factor * (
            self.machine.per_token_ms * own + self.machine.attention_ms * own * (cached + own / 2)
        )

    def _rest_of_step(self, engine: Engine, now_ms: float) -> None:
        run = engine._run
        assert run is not None
        self.at_ms = max(now_ms, run.end_ms(run.done + 1))
        self.step += 1
        self.kv_read += self.decoders
        for sequence, tokens in run.chunks:
            left = sequence.target - sequence.computed - tokens
            if sequence.gone:
                continue
            if left > 0:
                self.queue.append([left, sequence.computed + tokens, 1.0, _output_left(sequence)])
            else:
                self._join(sequence.target, _output_left(sequence))

    def walk(self) -> float:
        """Return when the last of the queue has its first token."""
        head = 0
        for _ in range(STEPS_MAX):
            self._retire()
            done, prefill, work = self._admit(head)
            self._pass(1 if prefill else self._steps_to_finish(), prefill, work)
            for item in self.queue[head:done]:
                self._join(item[1], item[3])
            head = done
            if head == len(self.queue):
                break
        return self.at_ms

    def _join(self, kv_tokens: float, output_left: float) -> None:
        if output_left <= 1:
            self.running -= 1
            self.free_tokens += kv_tokens
            return
        self.decoders += 1
        self.kv_read += kv_tokens
        self.order += 1
        due = self.step + int(output_left) - 1
        heappush(self.joined, (due, self.order, kv_tokens + output_left - 1))

    def _steps_to_finish(self) -> int:
        due = [heap[0][0] for heap in (self.finishes, self.joined) if heap]
        return max(1, min(due) - self.step) if due else 1

    def _retire(self) -> None:
        joined = self.joined
        while joined and joined[0][0] <= self.step:
            self._leave(heappop(joined)[2])
        finishes = self.finishes
        while finishes:
            due, _, sequence = finishes[0]
            if not sequence.gone and sequence.finish_step == due:
                if due > self.step:
                    return
                self._leave(sequence.kv_tokens(self.step))
            heappop(finishes)

    def _leave(self, tokens: float) -> None:
        self.decoders -= 1
        self.running -= 1
        self.kv_read -= tokens
        self.free_tokens += tokens

    def _admit(self, head: int) -> tuple[int, float, float]:
        """Fill a step; return up to where the queue is done after it, its prompt tokens, and its attention work."""
        budget = float(self.machine.step_budget - self.decoders)
        prefill = work = 0.0
        while head < len(self.queue) and budget > 0:
            item = self.queue[head]
            tokens = min(budget, item[0])
            if not item[2]:
                if self.running >= self.machine.seqs_max or tokens > self.free_tokens:
                    break
                self.running += 1
                item[2] = 1.0
            self.free_tokens -= tokens
            work += tokens * (item[1] + tokens / 2)
            prefill += tokens
            budget -= tokens
            item[0] -= tokens
            item[1] += tokens
            if item[0] > 0:
                break
            head += 1
        return head, prefill, work

    def _pass(self, steps: int, prefill: float, work: float) -> None:
        first_ms = self.factor * self.machine.step_ms(
            decoders=self.decoders, prefill_tokens=int(prefill), kv_read=int(self.kv_read), attention_work=work
        )
        slope_ms = self.factor * self.machine.per_kv_token_us * 1e-3 * self.decoders
        self.at_ms += steps * first_ms + slope_ms * (steps * (steps - 1) / 2)
        self.step += steps
        self.kv_read += steps * self.decoders
        self.free_tokens -= steps * self.decoders


def _output_left(sequence: Sequence) -> float:
    return float(sequence.request.output_tokens - sequence.emitted)


def outlook(engine: Engine, job: Job, now_ms: float) -> Outlook:
    """Roll an engine forward until a request that comes now has its first token."""
    roll = _Roll(engine, job, now_ms)
    return Outlook(roll.walk(), roll.work_ms, roll.awaiting)


def tpot_ms(engine: Engine, job: Job) -> float:
    """How fast the tokens of a request that comes now would follow each other: TPOT in milliseconds.

    While it decodes, everyone it meets takes part in its steps for what is left of their true output. Prefills of those
    who come later are left out.
    """
    machine, step, own = engine.preset, engine._decode_step, job.output_tokens
    met, kv_met = 0.0, 0.0
    for sequence in engine._all.values():
        if sequence.join_step >= 0:
            left = sequence.finish_step - step
            together = left if left < own else own
            kv_met += together * (sequence.target + step - sequence.join_step + together / 2)
        else:
            together = min(own, sequence.request.output_tokens - sequence.emitted)
            kv_met += together * sequence.target
        met += together
    decoders = 1.0 + met / own
    return engine._slowdown * (
        machine.fixed_ms
        + max(machine.memory_ms, machine.per_token_ms * decoders)
        + machine.per_kv_token_us * 1e-3 * (job.prompt_tokens + own / 2 + kv_met / own)
        + machine.per_seq_ms * decoders
    )


def healthy_ttft_ms(instances: Iterable[Instance], job: Job, now_ms: float) -> float | None:
    """TTFT that a typical healthy instance would give now: the median of those without a fault; None without any."""
    found: list[float] = []
    for instance in instances:
        if instance.faulty:
            continue
        core = instance.core
        if isinstance(core, Provider):
            found.append(core.model.healthy_ttft_ms(job.noise))
        else:
            core.advance_to(now_ms)
            found.append(outlook(core, job, now_ms).first_token_ms - now_ms)
    return sorted(found)[len(found) // 2] if found else None
