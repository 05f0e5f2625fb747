"""An LLM inference engine with continuous batching, after vLLM's V1 scheduler. Pure: the caller owns the clock.

Theory of operation
-------------------
The engine computes *steps*. At the start of a step it decides who takes part:

1. Every running decoder takes one token of the step budget. Crossing a 16-token boundary needs a new KV block;
   without a free block the latest-arrived running sequence is preempted: its blocks are freed, it goes to the front of
   the queue, and prompt and emitted tokens are computed again later. A step that preempted admits nobody.
2. The sequence whose prefill is under way takes what is left of the budget.
3. First-come admission, while sequences, budget and blocks allow. A prefill may span several steps.

Tokens appear at the end of the step, the first one with the step that finishes the prefill.

Cost
----
No loop over sequences per step. All decoders advance together, so tokens and cache of a sequence follow from the one
counter `_decode_step`; the total cache read is a counter; block boundaries are counted by phase modulo 16; finishes
wait in a heap. While nothing is admitted, finishes or runs out of blocks, the batch is constant and the steps form a
`Run` that is advanced in closed form. `next_event_ms` jumps over a run; `next_step_ms` is for callers that stream each
token.

Not modelled: speculative decoding, priorities, swapping, LoRA. Prefix caching has its seam (`PrefixIndex`).
"""

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Protocol

from evenload.sim.presets import BLOCK_TOKENS, EnginePreset
from evenload.sim.run import Run
from evenload.sim.sequence import Emission, EmissionKind, Gauges, Sequence, SimRequest, blocks_for

_RUN_STEPS_MAX = 1 << 20  # a run of a million steps is hours: a bound, not a limit anyone meets


class PrefixIndex(Protocol):
    """Which leading blocks of a prompt are in the cache already."""

    def cached_blocks(self, block_hashes: tuple[int, ...], /) -> int:
        """Number of leading blocks that need no computing."""
        ...

    def store(self, block_hashes: tuple[int, ...], /) -> None:
        """Take note of blocks that have been computed."""
        ...


class NoPrefixes:
    """The index of an engine whose prompts share nothing."""

    def cached_blocks(self, _block_hashes: tuple[int, ...], /) -> int:
        """Nothing is cached."""
        return 0

    def store(self, _block_hashes: tuple[int, ...], /) -> None:
        """Nothing is kept."""


class Engine:
    """One engine. Times are milliseconds of the caller's clock and must not go backwards.

    Args:
        preset: What steps cost and how much fits.
        queue_max: Most requests that wait (`--max-num-queued-reqs`); None is vLLM's default, unbounded.
        queued_tokens_max: Most prompt tokens that wait (`--max-num-queued-tokens`); None is unbounded.
        prefixes: The prefix index.
    """

    def __init__(
        self,
        preset: EnginePreset,
        *,
        queue_max: int | None = None,
        queued_tokens_max: int | None = None,
        prefixes: PrefixIndex | None = None,
    ) -> None:
        self.preset = preset
        self._queue_max = queue_max
        self._queued_tokens_max = queued_tokens_max
        self._final_tokens = 0
        self._prefixes = prefixes or NoPrefixes()
        self._slowdown = 1.0
        self._now_ms = 0.0
        self._all: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}  # in order of arrival; the last one is preempted first
        self._partial: Sequence | None = None  # at most one prefill is unfinished between steps
        self._run: Run | None = None
        self._finishes: list[tuple[int, int, Sequence]] = []
        self._finish_order = 0
        self._emissions: list[Emission] = []
        self._decoders = 0
        self._decode_step = 0
        self._kv_read = 0
        self._phases = [0] * BLOCK_TOKENS
        self._free_blocks = preset.kv_blocks
        self._preemptions = self._recomputed = self._rejections = 0
        self._prefix_queries = self._prefix_hits = 0
        self._prompt_tokens = self._generation_tokens = 0
        self._steps = 0
        self._busy_ms = 0.0

    def __repr__(self) -> str:
        gauges = self.gauges()
        return (
            f"Engine({self.preset.name}, running={gauges.running}, waiting={gauges.waiting}, kv={gauges.kv_usage:.2f})"
        )

    # -- what callers do -------------------------------------------------------------------------------------------

    def submit(self, request: SimRequest, now_ms: float) -> bool:
        """Queue a request; it may start at once.

        Returns:
            False when the bounded queue is full (counted as a rejection).

        Raises:
            ValueError: The id is in use, or prompt and output can never fit into the cache.
        """
        if request.id in self._all:
            raise ValueError(f"request {request.id}: this id is in the engine already")
        if blocks_for(request.prompt_tokens + request.output_tokens) > self.preset.kv_blocks:
            raise ValueError(
                f"request {request.id}: {request.prompt_tokens} + {request.output_tokens} tokens exceed the cache of "
                f"{self.preset.kv_tokens}"
            )
        self._catch_up(now_ms)
        if self.would_refuse(request.prompt_tokens):
            self._rejections += 1
            return False
        self._hold(request, 1)
        sequence = Sequence(request, now_ms, target=request.prompt_tokens)
        self._all[request.id] = sequence
        self._waiting.append(sequence)
        if self._run is None:
            self._plan(now_ms)
        elif len(self._waiting) == 1:
            # Behind a blocked head nothing changes before somebody leaves; at the head it may start with the next step.
            self._run.cut_short()
        return True

    def abort(self, request_id: str, now_ms: float) -> bool:
        """Drop a request, wherever it is; its blocks are free at once.

        Returns:
            False when the engine does not hold it (any more).
        """
        self._catch_up(now_ms)
        sequence = self._all.pop(request_id, None)
        if sequence is None:
            return False
        self._hold(sequence.request, -1)
        if request_id in self._running:
            self._release(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.gone = True
        if self._run is not None:
            self._run.cut_short()
        return True

    def set_slowdown(self, factor: float, now_ms: float) -> None:
        """Multiply the duration of every step that starts from now on.

        Raises:
            ValueError: The factor is not positive.
        """
        if not factor > 0:
            raise ValueError(f"slowdown factor must be positive, got {factor}")
        self._catch_up(now_ms)
        self._slowdown = factor
        if self._run is not None:
            self._run.cut_short()

    def advance(self, now_ms: float) -> list[Emission]:
        """Compute up to `now_ms` and return what happened since the last call, in order."""
        self._catch_up(now_ms)
        emissions, self._emissions = self._emissions, []
        return emissions

    def advance_to(self, now_ms: float) -> None:
        """Compute up to `now_ms`; what happened is returned by the next `advance`."""
        self._catch_up(now_ms)

    # -- what callers read -----------------------------------------------------------------------------------------

    def next_event_ms(self) -> float | None:
        """When the next emission can happen if nobody calls anything; None while idle."""
        if self._emissions:
            return self._now_ms
        return None if self._run is None else self._run.last_ms

    def next_step_ms(self) -> float | None:
        """When the next step ends, that is, when the next tokens appear; None while idle."""
        if self._emissions:
            return self._now_ms
        return None if self._run is None else self._run.end_ms(self._run.done + 1)

    def tokens_of(self, request_id: str) -> int:
        """Tokens emitted so far for a request the engine holds."""
        return self._all[request_id].tokens(self._decode_step)

    def holds(self, request_id: str) -> bool:
        """Whether the request waits or runs."""
        return request_id in self._all

    @property
    def demand_tokens(self) -> int:
        """KV tokens of all requests that wait or run, as if they all ran: what was emitted counts, preempted or not."""
        prefilling = sum(sequence.target for sequence in self._running.values() if not sequence.decoding)
        return self._kv_read + prefilling + sum(sequence.target for sequence in self._waiting)

    @property
    def final_tokens(self) -> int:
        """Tokens that all requests it holds will have in the end: the truth that only an oracle may ask for."""
        return self._final_tokens

    def would_refuse(self, prompt_tokens: int) -> bool:
        """Whether its queue is too full for a prompt of this size."""
        if self._run is None:
            return False
        if self._queue_max is not None and len(self._waiting) >= self._queue_max:
            return True
        if self._queued_tokens_max is None or not self._waiting:
            return False
        waiting = sum(sequence.target for sequence in self._waiting)
        return waiting + prompt_tokens > self._queued_tokens_max

    def gauges(self) -> Gauges:
        """The figures an engine publishes, as of the last call."""
        total = self.preset.kv_blocks
        return Gauges(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=(total - self._free_blocks) / total,
            preemptions=self._preemptions,
            recomputed_tokens=self._recomputed,
            rejections=self._rejections,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            steps=self._steps,
            busy_ms=self._busy_ms,
        )

    def _hold(self, request: SimRequest, sign: int) -> None:
        self._final_tokens += sign * (request.prompt_tokens + request.output_tokens)

    # -- time ------------------------------------------------------------------------------------------------------

    def _catch_up(self, now_ms: float) -> None:
        assert now_ms >= self._now_ms, f"time went backwards: {self._now_ms} to {now_ms}"
        self._now_ms = now_ms
        while (run := self._run) is not None:
            self._apply(run, run.steps_by(now_ms))
            if run.done < run.steps:
                return
            end_ms = run.last_ms
            if run.chunks:
                self._finish_chunks(run, end_ms)
            self._finish_decoders(end_ms)
            self._plan(end_ms)

    def _apply(self, run: Run, done: int) -> None:
        steps = done - run.done
        if not steps:
            return
        self._busy_ms += run.end_ms(done) - run.end_ms(run.done)
        self._free_blocks -= self._blocks_needed(steps)
        self._decode_step += steps
        self._kv_read += steps * self._decoders
        self._generation_tokens += steps * self._decoders
        self._steps += steps
        run.done = done

    def _blocks_needed(self, steps: int) -> int:
        """Blocks that the decoders take in the next `steps` steps."""
        rounds, rest = divmod(steps, BLOCK_TOKENS)
        blocks = rounds * self._decoders
        for step in range(self._decode_step + 1, self._decode_step + rest + 1):
            blocks += self._phases[step % BLOCK_TOKENS]
        return blocks

    def _steps_with_blocks(self, wanted: int) -> int:
        """How many of the wanted steps the free blocks last."""
        if self._free_blocks >= self._decoders * (wanted // BLOCK_TOKENS + 1):
            return wanted  # a block each per 16 steps: no need to count
        rounds, left = divmod(self._free_blocks, self._decoders)
        steps = rounds * BLOCK_TOKENS
        for i in range(1, BLOCK_TOKENS + 1):
            left -= self._phases[(self._decode_step + i) % BLOCK_TOKENS]
            if left < 0:
                break
            steps += 1
        return min(steps, wanted)

    def _finish_chunks(self, run: Run, at_ms: float) -> None:
        for sequence, tokens in run.chunks:
            if sequence.gone:
                continue
            sequence.computed += tokens
            if sequence.computed < sequence.target:
                self._partial = sequence
                continue
            self._emit_after_prefill(sequence, at_ms)

    def _emit_after_prefill(self, sequence: Sequence, at_ms: float) -> None:
        if sequence.request.block_hashes:
            self._prefixes.store(sequence.request.block_hashes)
        if sequence.emitted == 0:
            self._emissions.append(Emission(at_ms, EmissionKind.FIRST_TOKEN, sequence.request.id))
            self._prompt_tokens += sequence.request.prompt_tokens
        sequence.emitted += 1
        self._generation_tokens += 1
        left = sequence.request.output_tokens - sequence.emitted
        if left == 0:
            self._retire(sequence, at_ms)
            return
        sequence.join_step = self._decode_step
        sequence.finish_step = self._decode_step + left
        self._phases[sequence.boundary()] += 1
        self._decoders += 1
        self._kv_read += sequence.target
        self._finish_order += 1
        heappush(self._finishes, (sequence.finish_step, self._finish_order, sequence))

    def _finish_decoders(self, at_ms: float) -> None:
        while self._finishes and self._finishes[0][0] <= self._decode_step:
            step, _, sequence = heappop(self._finishes)
            if not sequence.gone and sequence.finish_step == step:
                self._retire(sequence, at_ms)
        if len(self._finishes) > 4 * self._decoders + 64:  # entries of aborted and preempted sequences
            self._finishes = [e for e in self._finishes if not e[2].gone and e[2].finish_step == e[0]]
            heapify(self._finishes)

    def _retire(self, sequence: Sequence, at_ms: float) -> None:
        self._release(sequence)
        sequence.gone = True
        del self._all[sequence.request.id]
        self._hold(sequence.request, -1)
        self._emissions.append(Emission(at_ms, EmissionKind.FINISHED, sequence.request.id))

    def _release(self, sequence: Sequence) -> None:
        """Take a running sequence out of the batch and free its blocks."""
        del self._running[sequence.request.id]
        if sequence.decoding:
            kv_tokens = sequence.kv_tokens(self._decode_step)
            self._decoders -= 1
            self._kv_read -= kv_tokens
            self._phases[sequence.boundary()] -= 1
            self._free_blocks += blocks_for(kv_tokens)
        else:
            # Blocks of a chunk are taken when its step starts, before its tokens count as computed.
            self._free_blocks += blocks_for(sequence.computed + self._tokens_under_way(sequence))
        if self._partial is sequence:
            self._partial = None
        assert self._free_blocks <= self.preset.kv_blocks, "more blocks freed than there are"

    def _tokens_under_way(self, sequence: Sequence) -> int:
        """Tokens of the sequence in the step being computed; 0 when that step has been accounted for."""
        run = self._run
        if run is None or run.done >= run.steps:
            return 0
        return sum(tokens for member, tokens in run.chunks if member is sequence)

    # -- scheduling ------------------------------------------------------------------------------------------------

    def _plan(self, at_ms: float) -> None:
        """Decide the next run of steps, or fall idle."""
        self._run = None
        preempted = self._preempt_for_decoders(at_ms)
        reserved = self._phases[(self._decode_step + 1) % BLOCK_TOKENS]
        budget = self.preset.step_budget - self._decoders
        chunks: list[tuple[Sequence, int]] = []
        if self._partial is not None:
            partial, self._partial = self._partial, None
            tokens = min(budget, partial.target - partial.computed)
            if self._take_blocks(partial, tokens, reserved):
                chunks.append((partial, tokens))
                budget -= tokens
            else:
                self._preempt(partial, at_ms)
                preempted = True
        if not preempted:
            self._admit(chunks, budget, reserved)
        if not self._running:
            assert not self._waiting, "an empty engine admits its first request"
            return
        self._run = self._run_of(chunks, at_ms)

    def _run_of(self, chunks: list[tuple[Sequence, int]], at_ms: float) -> Run:
        preset = self.preset
        prefill, work = 0, 0.0
        for sequence, tokens in chunks:
            prefill += tokens
            work += tokens * (sequence.computed + tokens / 2)
        first_ms = self._slowdown * preset.step_ms(
            decoders=self._decoders, prefill_tokens=prefill, kv_read=self._kv_read, attention_work=work
        )
        slope_ms = self._slowdown * preset.per_kv_token_us * 1e-3 * self._decoders
        steps = 1
        if not chunks and self._decoders:
            steps = self._steps_with_blocks(min(self._steps_to_finish(), _RUN_STEPS_MAX))
        assert steps >= 1, "a planned step can always be computed"
        return Run(at_ms, first_ms, slope_ms, steps, chunks)

    def _steps_to_finish(self) -> int:
        while self._finishes[0][2].gone or self._finishes[0][2].finish_step != self._finishes[0][0]:
            heappop(self._finishes)
        return self._finishes[0][0] - self._decode_step

    def _preempt_for_decoders(self, at_ms: float) -> bool:
        preempted = False
        while self._phases[(self._decode_step + 1) % BLOCK_TOKENS] > self._free_blocks:
            self._preempt(next(reversed(self._running.values())), at_ms)
            preempted = True
        return preempted

    def _preempt(self, sequence: Sequence, at_ms: float) -> None:
        self._recomputed += sequence.kv_tokens(self._decode_step)
        self._release(sequence)
        sequence.reset(self._decode_step)
        self._waiting.appendleft(sequence)
        self._preemptions += 1
        self._emissions.append(Emission(at_ms, EmissionKind.PREEMPTED, sequence.request.id))

    def _admit(self, chunks: list[tuple[Sequence, int]], budget: int, reserved: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self.preset.seqs_max:
            head = self._waiting[0]
            cached = self._cached_tokens(head)
            tokens = min(budget, head.target - cached)
            head.computed = cached
            if not self._take_blocks(head, tokens, reserved):
                head.computed = 0
                return
            self._waiting.popleft()
            self._running[head.request.id] = head
            self._prefix_queries += head.target
            self._prefix_hits += cached
            chunks.append((head, tokens))
            budget -= tokens

    def _cached_tokens(self, sequence: Sequence) -> int:
        """Whole cached blocks count, and the last token is always computed."""
        blocks = self._prefixes.cached_blocks(sequence.request.block_hashes)
        return min(blocks * BLOCK_TOKENS, (sequence.target - 1) // BLOCK_TOKENS * BLOCK_TOKENS)

    def _take_blocks(self, sequence: Sequence, tokens: int, reserved: int) -> bool:
        held = blocks_for(sequence.computed) if sequence.request.id in self._running else 0
        needed = blocks_for(sequence.computed + tokens) - held
        if needed > self._free_blocks - reserved:
            return False
        self._free_blocks -= needed
        return True
