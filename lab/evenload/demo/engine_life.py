"""One life of an engine process: the pure model driven by the event loop's clock, until a restart ends it."""

import asyncio
import time
from dataclasses import dataclass, field
from random import Random

from evenload.demo.answer import Answer
from evenload.demo.engine_metrics import EngineMetrics
from evenload.sim.engine import Engine
from evenload.sim.presets import EnginePreset
from evenload.sim.provider import Provider, ProviderModel
from evenload.sim.sequence import EmissionKind, SimRequest

TICK_S_MIN = 0.001  # tokens closer together than this leave in one write


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What kind of engine lives here.

    Attributes:
        provider: If set, a black box provider instead of an engine.
        queue_max: Most waiting requests; None is unbounded.
        speed: Engine time per wall time.
    """

    preset: EnginePreset
    model: str
    provider: ProviderModel | None = None
    queue_max: int | None = None
    speed: float = 1.0

    def core(self, rng: Random) -> Engine | Provider:
        """A cold engine."""
        if self.provider is not None:
            return Provider(self.provider, rng)
        return Engine(self.preset, queue_max=self.queue_max)


@dataclass(slots=True)
class EngineLife:
    """Requests go in, answers are written as the model emits tokens."""

    spec: EngineSpec
    rng: Random
    started_s: float = field(default_factory=time.time)
    core: Engine | Provider = field(init=False)
    metrics: EngineMetrics = field(init=False)
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _t0_s: float = field(init=False)
    _timer: asyncio.TimerHandle | None = None
    _frozen: bool = False
    _held: dict[str, asyncio.TimerHandle | None] = field(default_factory=dict)
    _answers: dict[str, Answer] = field(default_factory=dict)
    _streaming: dict[str, Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start the clock."""
        self.core = self.spec.core(self.rng)
        self.metrics = EngineMetrics(self.spec.model, self.started_s, self.spec.preset.kv_blocks)
        self._loop = asyncio.get_running_loop()
        self._t0_s = self._loop.time()

    @property
    def held(self) -> int:
        """Requests that faults keep from the model."""
        return len(self._held)

    @property
    def in_flight(self) -> int:
        """Requests without a complete answer."""
        return len(self._answers)

    def now_ms(self) -> float:
        """Engine time."""
        return (self._loop.time() - self._t0_s) * 1000 * self.spec.speed

    def submit(self, answer: Answer) -> bool:
        """Give a request to the model; False when it refuses."""
        request = SimRequest(answer.voice.id, answer.generation.prompt_tokens, answer.output_tokens)
        if not self.core.submit(request, self.now_ms()):
            self._answers.pop(request.id, None)
            return False
        self._answers[request.id] = answer
        self._schedule()
        return True

    def hold(self, answer: Answer, delay_s: float | None) -> None:
        """Keep a request from the model for a while, or (None) for ever."""
        request_id = answer.voice.id
        self._answers[request_id] = answer
        handle = None if delay_s is None else self._loop.call_later(delay_s, self._release, answer)
        self._held[request_id] = handle

    def drop(self, answer: Answer) -> None:
        """The client left, or the answer was cut: free what it holds."""
        request_id = answer.voice.id
        if self._answers.pop(request_id, None) is None:
            return
        self._streaming.pop(request_id, None)
        self.metrics.finished["abort"] += 1
        if request_id in self._held:
            handle = self._held.pop(request_id)
            if handle is not None:
                handle.cancel()
            return
        self.core.abort(request_id, self.now_ms())
        self._schedule()

    def set_slowdown(self, factor: float) -> None:
        """Multiply step times from the next step on."""
        self.core.set_slowdown(factor, self.now_ms())
        self._schedule()

    def unfinished(self) -> tuple[Answer, ...]:
        """The answers that are not complete."""
        return tuple(self._answers.values())

    def freeze(self) -> None:
        """Stop the clock: no request gets another token."""
        self._frozen = True
        self._stop_timers()

    def end(self) -> None:
        """Stop the clock and forget all requests."""
        self._stop_timers()
        self._held.clear()
        self._answers.clear()
        self._streaming.clear()

    def _stop_timers(self) -> None:
        for handle in (self._timer, *self._held.values()):
            if handle is not None:
                handle.cancel()
        self._timer = None

    def _release(self, answer: Answer) -> None:
        del self._held[answer.voice.id]
        if not self.submit(answer):
            answer.exchange.cut(reset=False)  # the head has left already; a queue that filled meanwhile cannot say 503

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = None if self._frozen else self.core.next_step_ms()
        if due_ms is not None:
            due_s = self._t0_s + due_ms / 1000 / self.spec.speed
            self._timer = self._loop.call_at(max(due_s, self._loop.time() + TICK_S_MIN), self._tick)

    def _tick(self) -> None:
        self._timer = None
        finished: list[str] = []
        for emission in self.core.advance(self.now_ms()):
            answer = self._answers.get(emission.request_id)
            if answer is None:
                continue
            if emission.kind is EmissionKind.FIRST_TOKEN:
                self._streaming[emission.request_id] = answer
            elif emission.kind is EmissionKind.FINISHED:
                finished.append(emission.request_id)
        self._show(set(finished))
        self._schedule()

    def _show(self, finished: set[str]) -> None:
        now_s = time.perf_counter()
        for request_id, answer in tuple(self._streaming.items()):
            tokens = answer.output_tokens if request_id in finished else self.core.tokens_of(request_id)
            fresh = tokens - answer.sent
            if fresh <= 0:
                continue
            self._observe(answer, fresh, now_s)
            if answer.show(tokens, now_s):
                self._over(answer, complete=answer.sent == answer.output_tokens)

    def _observe(self, answer: Answer, fresh: int, now_s: float) -> None:
        if answer.first_s is None:
            self.metrics.ttft_s.observe(now_s - answer.arrived_s)
            fresh -= 1
        if fresh > 0:
            self.metrics.itl_s.observe((now_s - answer.last_s) / fresh, fresh)

    def _over(self, answer: Answer, *, complete: bool) -> None:
        if not complete:
            self.drop(answer)
            return
        del self._answers[answer.voice.id]
        del self._streaming[answer.voice.id]
        self.metrics.finished[answer.reason] += 1
        self.metrics.e2e_s.observe(answer.last_s - answer.arrived_s)
        self.metrics.prompt_tokens.observe(answer.generation.prompt_tokens)
        self.metrics.output_tokens.observe(answer.output_tokens)
