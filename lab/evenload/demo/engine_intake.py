"""How a simulated engine takes a request: refused, held back or hung by a fault, or given to the model.

Lengths of answers that the client leaves open, ids, words and the luck of faults come from the engine's random source.
"""

import math
import time
from typing import Final

import msgspec

from evenload.demo.answer import Answer, error_frames
from evenload.demo.engine_process import ENGINE_FAILED, EngineProcess
from evenload.demo.faults import SaturateMode
from evenload.demo.http_server import Exchange
from evenload.demo.openai_answer import BUSY, WORDS, Voice
from evenload.demo.openai_request import BadRequestError, Generation, Kind, error_body, parse

HELD_MAX: Final = 10_000  # requests that hang or wait for a slow first token; beyond it they are refused

# Length of an answer that the client leaves open: log-normal after Azure's conversation trace (median 129, mean 211).
_OUTPUT_MEDIAN, _OUTPUT_SIGMA = 129.0, 0.99
_SHUTDOWN = "cannot schedule new futures after shutdown"
_KV_FULL = "The KV cache is exhausted: no free blocks for new requests. Please try again later."
_ID_PREFIX: Final = {
    Kind.CHAT: "chatcmpl-",
    Kind.COMPLETION: "cmpl-",
    Kind.EMBEDDING: "embd-",
    Kind.RESPONSE: "resp_",
    Kind.MESSAGE: "chatcmpl-",  # as vLLM calls it
}


class EngineIntake:
    """Takes requests for one engine, as its faults allow.

    Args:
        process: The engine; its faults and its life are read anew for each request.
        context_tokens: Most tokens of prompt and answer together.
        fingerprint: What answers name as the system that made them.
    """

    def __init__(self, process: EngineProcess, context_tokens: int, fingerprint: str) -> None:
        self._process = process
        self._context_tokens = context_tokens
        self._fingerprint = fingerprint

    def take(self, exchange: Exchange, kind: Kind) -> None:
        """Answer a request of that kind now, or as the engine computes it."""
        if self._fail_before_parsing(exchange):
            return
        try:
            generation = parse(kind, exchange.body, model=self._process.spec.model, context_tokens=self._context_tokens)
        except BadRequestError as error:
            exchange.respond(error.status, error.body)
            return
        if self._saturated(exchange, generation) or self._over_limit(exchange, generation):
            return
        answer = self._answer(exchange, generation)
        life = self._process.life
        exchange.on_gone = lambda: life.drop(answer)
        hang = self._process.faults.hang
        if hang is not None and self._drawn(hang.probability):
            self._hold(answer, None)
        elif (delay_s := self._delay_s(generation)) > 0:
            if self._hold(answer, delay_s):
                answer.open()
        elif self._process.life.submit(answer):
            answer.open()
        else:
            self._refuse(exchange)

    def _drawn(self, probability: float) -> bool:
        return probability >= 1 or self._process.rng.random() < probability

    def _fail_before_parsing(self, exchange: Exchange) -> bool:
        faults = self._process.faults
        if faults.drain is not None:
            exchange.respond(500, error_body(500, _SHUTDOWN, "InternalServerError"))
            return True
        if self._process.core_dead:
            exchange.respond(500, error_body(500, ENGINE_FAILED, "InternalServerError"))
            return True
        if faults.fail_fast is not None and self._drawn(faults.fail_fast.probability):
            status = faults.fail_fast.status
            exchange.respond(status, error_body(status, ENGINE_FAILED, "InternalServerError"))
            return True
        return False

    def _saturated(self, exchange: Exchange, generation: Generation) -> bool:
        saturate = self._process.faults.saturate
        if saturate is None or not self._drawn(saturate.probability):
            return False
        if saturate.mode is SaturateMode.KV_429:
            retry = ("retry-after", str(saturate.retry_after_s))
            exchange.respond(429, error_body(429, _KV_FULL, "Too Many Requests"), extra=(retry,))
        else:
            _say_busy(
                exchange, generation.kind, in_stream=saturate.mode is SaturateMode.STREAM_ERROR and generation.stream
            )
        return True

    def _over_limit(self, exchange: Exchange, generation: Generation) -> bool:
        limit = self._process.faults.limit
        if limit is None or self._process.life.in_flight < limit.requests:
            return False
        self._process.life.metrics.refused += 1
        _say_busy(exchange, generation.kind, in_stream=generation.stream and self._drawn(limit.in_stream))
        return True

    def _refuse(self, exchange: Exchange) -> None:
        """The model's own no: a full queue, or a provider's rate limit."""
        if self._process.spec.provider is None:
            exchange.respond(503, error_body(503, BUSY, "Service Unavailable"))
            return
        body = {
            "message": "Rate limit exceeded.",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
        }
        retry = (("retry-after", "1"), ("retry-after-ms", "1000"))
        exchange.respond(429, msgspec.json.encode({"error": body}), extra=retry)

    def _hold(self, answer: Answer, delay_s: float | None) -> bool:
        if self._process.life.held >= HELD_MAX:
            self._refuse(answer.exchange)
            return False
        self._process.life.hold(answer, delay_s)
        return True

    def _delay_s(self, generation: Generation) -> float:
        """How long a slow first token is held back, so that it comes about `ttft_ms` after the request."""
        slow = self._process.faults.slow
        if slow is None or slow.ttft_ms == 0 or not self._drawn(slow.probability):
            return 0.0
        if self._process.spec.provider is not None:
            alone_ms = self._process.spec.provider.ttft_ms
        else:
            tokens = generation.prompt_tokens
            alone_ms = self._process.spec.preset.step_ms(
                decoders=0, prefill_tokens=tokens, kv_read=0, attention_work=tokens * tokens / 2
            )
        return max(0.0, slow.ttft_ms - alone_ms / self._process.spec.speed) / 1000

    def _answer(self, exchange: Exchange, generation: Generation) -> Answer:
        kind, rng, faults = generation.kind, self._process.rng, self._process.faults
        voice = Voice(
            kind=kind,
            # vLLM takes a client's id for its own, so ids need not be unique.
            id=f"{_ID_PREFIX[kind]}{exchange.headers.get('x-request-id') or format(rng.getrandbits(64), '016x')}",
            created=int(time.time()),
            model=self._process.spec.model,
            fingerprint=self._fingerprint,
            prompt_tokens=generation.prompt_tokens,
            first_word=rng.randrange(len(WORDS)),
            split_every=0 if faults.split is None else faults.split.every,
        )
        tokens, reason = self._output(generation)
        cut = faults.cut
        if cut is not None and not self._drawn(cut.probability):
            cut = None
        return Answer(exchange, generation, voice, output_tokens=tokens, reason=reason, cut=cut)

    def _output(self, generation: Generation) -> tuple[int, str]:
        """Output tokens and finish reason: drawn, within what the client and the context allow."""
        if generation.kind is Kind.EMBEDDING:
            return 1, "stop"
        room = self._context_tokens - generation.prompt_tokens
        limit = room if generation.max_tokens is None else min(room, generation.max_tokens)
        if generation.ignore_eos:
            return limit, "length"
        drawn = round(self._process.rng.lognormvariate(math.log(_OUTPUT_MEDIAN), _OUTPUT_SIGMA))
        tokens = max(1, drawn, generation.min_tokens)
        return (tokens, "stop") if tokens < limit else (limit, "length")


def _say_busy(exchange: Exchange, kind: Kind, *, in_stream: bool) -> None:
    if in_stream:
        exchange.start_stream()
        exchange.send(*error_frames(kind, 503, BUSY, "Service Unavailable"))
        exchange.end()
    else:
        exchange.respond(503, error_body(503, BUSY, "Service Unavailable"))
