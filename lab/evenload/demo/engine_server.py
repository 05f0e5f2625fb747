"""Simulated engines over HTTP, shaped like vLLM 0.32, with faults on demand.

    python -m evenload.demo.engine_server --port 9100 --count 6
    curl -s localhost:9100/v1/chat/completions -d '{"stream":true,"messages":[{"role":"user","content":"hi"}]}'
    curl -s -X POST localhost:9100/admin/faults -d '{"slow":{"ttft_ms":3500}}'      # see faults.py for all of them
    curl -s -X POST 'localhost:9101/admin/faults?engine=engine-0' -d '{"crash":{}}' # by way of a sibling
    curl -s -X DELETE 'localhost:9101/admin/faults?engine=engine-0'

An `EngineServer` is one engine on one port; several share an event loop, and an `EngineFleet` lets each reach its
siblings' faults, since a crashed engine does not answer for itself. The model is `evenload.sim.engine.Engine` driven by
the real clock times a speed factor; everything here only turns its token counts into bytes.
"""

import asyncio
import math
import time
from random import Random
from typing import Final
from zlib import crc32

import msgspec

from evenload.demo.answer import Answer, error_frames
from evenload.demo.engine_life import EngineLife, EngineSpec
from evenload.demo.engine_metrics import CONTENT_TYPE
from evenload.demo.faults import FaultError, Faults, SaturateMode
from evenload.demo.http_server import Exchange, HttpListener
from evenload.demo.openai_answer import BUSY, WORDS, Voice, models_body
from evenload.demo.openai_request import BadRequestError, Generation, Kind, error_body, parse
from evenload.sim.engine import Engine
from evenload.sim.presets import BLOCK_TOKENS
from evenload.sim.presets import preset as find_preset
from evenload.sim.provider import ProviderModel

VERSION: Final = "0.32.0"
CONTEXT_TOKENS_MAX: Final = 131_072
HELD_MAX: Final = 10_000  # requests that hang or wait for a slow first token; beyond it they are refused

# Length of an answer that the client leaves open: log-normal after Azure's conversation trace (median 129, mean 211).
_OUTPUT_MEDIAN, _OUTPUT_SIGMA = 129.0, 0.99
_ENGINE_FAILED = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_SHUTDOWN = "cannot schedule new futures after shutdown"
_KV_FULL = "The KV cache is exhausted: no free blocks for new requests. Please try again later."
_KINDS: Final = {
    "/v1/chat/completions": Kind.CHAT,
    "/v1/completions": Kind.COMPLETION,
    "/v1/embeddings": Kind.EMBEDDING,
    "/v1/responses": Kind.RESPONSE,
    "/v1/messages": Kind.MESSAGE,
}
_ID_PREFIX: Final = {
    Kind.CHAT: "chatcmpl-",
    Kind.COMPLETION: "cmpl-",
    Kind.EMBEDDING: "embd-",
    Kind.RESPONSE: "resp_",
    Kind.MESSAGE: "chatcmpl-",  # as vLLM calls it
}


class EngineServer:
    """One simulated engine on one port.

    Args:
        port: 0 lets the system choose; see `port` after `start()`.
        preset: What it costs, see `evenload.sim.presets`.
        speed: Engine time per wall time; 2.0 computes everything in half the time.
        name: How siblings and tables call it.
        model: The model it serves.
        seed: For ids, texts, open output lengths, fault draws; combined with the name.
        queue_max: `--max-num-queued-reqs`; None is unbounded, as vLLM's default.
        provider: If set, it is a provider instead: log-normal TTFT, no gauges, no /health.
        context_tokens: `--max-model-len`; None is what fits, at most 131,072.

    Raises:
        ValueError: Unknown preset, or a speed that is not positive.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        preset: str = "h100-8b",
        speed: float = 1.0,
        name: str = "engine-0",
        model: str = "demo-8b",
        seed: int = 0,
        queue_max: int | None = None,
        provider: ProviderModel | None = None,
        context_tokens: int | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        if not speed > 0:
            raise ValueError(f"speed must be positive, got {speed}")
        engine_preset = find_preset(preset)
        self.name = name
        self.spec = EngineSpec(preset=engine_preset, model=model, provider=provider, queue_max=queue_max, speed=speed)
        fits = (engine_preset.kv_blocks - 1) * BLOCK_TOKENS
        self.context_tokens = min(CONTEXT_TOKENS_MAX, fits) if context_tokens is None else context_tokens
        if not 2 <= self.context_tokens <= fits:
            raise ValueError(f"context_tokens must be in 2..{fits}, the size of the KV cache, got {context_tokens}")
        self.faults = Faults()
        self.fleet = EngineFleet([self])
        self._rng = Random(f"{seed}:{name}")
        self._fingerprint = f"vllm-{VERSION}-{crc32(name.encode()):08x}"
        self._listener = HttpListener(self._handle, host, port)
        self._life: EngineLife | None = None
        self._core_dead = False
        self._revival: asyncio.Task[None] | None = None
        self._admin_tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        state = "up" if self._listener.listening else "down"
        return f"EngineServer({self.name}, {self.url}, {self.spec.preset.name}, {state}, faults={self.faults.active()})"

    # -- life ------------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.port

    @property
    def url(self) -> str:
        """The base URL, without /v1."""
        return f"http://{self._listener.host}:{self._listener.port}"

    @property
    def life(self) -> EngineLife:
        """The present life; it ends with a restart or crash."""
        assert self._life is not None, "the engine is down"
        return self._life

    async def start(self) -> None:
        """Listen, cold."""
        self._life = EngineLife(self.spec, self._rng)
        self._core_dead = False
        if self.faults.slow is not None:
            self._life.set_slowdown(self.faults.slow.factor)
        await self._listener.open()

    async def stop(self) -> None:
        """Drop everything and be gone."""
        self._cancel_revival()
        self._go_down(None)
        for task in tuple(self._admin_tasks):
            task.cancel()
        await asyncio.gather(*self._admin_tasks, return_exceptions=True)

    def _go_down(self, spare: Exchange | None) -> None:
        if self._life is not None:
            self._life.end()
            self._life = None
        self._listener.close(reset=True, spare=spare)

    def _kill_core(self) -> None:
        if self._life is None:
            return
        self._core_dead = True
        answers = self._life.unfinished()
        self._life.end()
        for answer in answers:
            answer.exchange.on_gone = None  # its life has ended
            answer.fail(500, _ENGINE_FAILED, "InternalServerError")

    async def _exit(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._go_down(None)

    async def _revive(self, down_s: float) -> None:
        await asyncio.sleep(down_s)
        self.faults = msgspec.structs.replace(self.faults, restart=None)
        await self.start()

    def _cancel_revival(self) -> None:
        if self._revival is not None:
            self._revival.cancel()
            self._revival = None

    # -- faults ----------------------------------------------------------------------------------------------------

    async def set_faults(self, document: object, *, spare: Exchange | None = None) -> Faults:
        """Set or heal the faults that `document` names.

        Args:
            document: See `evenload.demo.faults`.
            spare: The request that asked for it, whose connection may flush before a crash.

        Raises:
            FaultError: The document is wrong; nothing is changed.
        """
        faults = self.faults.merged(document)
        assert isinstance(document, dict)
        self.faults = faults
        if self._life is not None:
            self._life.set_slowdown(faults.slow.factor if faults.slow is not None else 1.0)
        if faults.crash is not None:
            self._cancel_revival()
            self._go_down(spare)
        elif document.get("restart") is not None and faults.restart is not None:
            self._cancel_revival()
            self._go_down(spare)
            self._revival = asyncio.create_task(self._revive(faults.restart.down_s))
        elif document.get("kill_core") is not None and faults.kill_core is not None:
            self._cancel_revival()
            self._kill_core()
            self._revival = asyncio.create_task(self._exit(faults.kill_core.exit_s))
        elif document.get("stop") is not None and self._life is not None:
            self._life.freeze()
            self._listener.refuse()
        elif not faults.down and (self._core_dead or not self._listener.listening):
            self._cancel_revival()
            self._go_down(spare)
            await self.start()
        return faults

    async def heal(self, *, spare: Exchange | None = None) -> None:
        """Heal all faults; an engine that is down comes back cold, at once."""
        await self.set_faults(dict.fromkeys(Faults.__struct_fields__), spare=spare)

    # -- HTTP ------------------------------------------------------------------------------------------------------

    def _handle(self, exchange: Exchange) -> None:
        kind = _KINDS.get(exchange.path)
        if kind is not None:
            if exchange.method == "POST":
                self._compute(exchange, kind)
            else:
                exchange.respond(405, b'{"detail":"Method Not Allowed"}', extra=(("allow", "POST"),))
        elif exchange.path == "/admin/faults":
            task = asyncio.get_running_loop().create_task(self._admin(exchange))
            self._admin_tasks.add(task)
            task.add_done_callback(self._admin_tasks.discard)
        else:
            self._read(exchange)

    def _read(self, exchange: Exchange) -> None:
        life, path = self.life, exchange.path
        own = self.spec.provider is None
        if path == "/v1/models":
            permission = f"modelperm-{crc32(self.name.encode()):016x}"
            exchange.respond(200, models_body(self.spec.model, int(life.started_s), self.context_tokens, permission))
        elif own and path == "/health":
            exchange.respond(503 if self._core_dead else 200, b"", content_type=None)
        elif own and path == "/version":
            exchange.respond(200, msgspec.json.encode({"version": VERSION}))
        elif own and path == "/load":
            exchange.respond(200, msgspec.json.encode({"server_load": life.in_flight}))
        elif own and path == "/metrics":
            exchange.respond(200, self._metrics_page(), content_type=CONTENT_TYPE)
        else:
            exchange.respond(404, b'{"detail":"Not Found"}')

    def _metrics_page(self) -> bytes:
        core = self.life.core
        assert isinstance(core, Engine), "a provider has no metrics"
        core.advance_to(self.life.now_ms())
        return self.life.metrics.render(core.gauges(), held=self.life.held, cpu_s=time.process_time()).encode()

    async def _admin(self, exchange: Exchange) -> None:
        server = self.fleet.find(exchange.query.get("engine", self.name))
        if server is None:
            names = ", ".join(self.fleet.names())
            exchange.respond(404, msgspec.json.encode({"detail": f"no engine of that name here; there are {names}"}))
            return
        try:
            if exchange.method == "POST":
                await server.set_faults(msgspec.json.decode(exchange.body), spare=exchange)
            elif exchange.method == "DELETE":
                await server.heal(spare=exchange)
            elif exchange.method != "GET":
                exchange.respond(405, b'{"detail":"Method Not Allowed"}', extra=(("allow", "GET, POST, DELETE"),))
                return
        except (FaultError, msgspec.DecodeError) as error:
            exchange.respond(400, msgspec.json.encode({"detail": str(error)}))
            return
        exchange.respond(200, msgspec.json.encode(server.status()))

    def status(self) -> dict[str, object]:
        """What the admin endpoint shows."""
        return {
            "engine": self.name,
            "url": self.url,
            "preset": self.spec.preset.name,
            "up": self._listener.listening,
            "faults": self.faults.active(),
        }

    # -- computing -------------------------------------------------------------------------------------------------

    def _drawn(self, probability: float) -> bool:
        return probability >= 1 or self._rng.random() < probability

    def _compute(self, exchange: Exchange, kind: Kind) -> None:
        if self._fail_before_parsing(exchange):
            return
        try:
            generation = parse(kind, exchange.body, model=self.spec.model, context_tokens=self.context_tokens)
        except BadRequestError as error:
            exchange.respond(error.status, error.body)
            return
        if self._saturated(exchange, generation) or self._over_limit(exchange, generation):
            return
        answer = self._answer(exchange, generation)
        life = self.life
        exchange.on_gone = lambda: life.drop(answer)
        hang = self.faults.hang
        if hang is not None and self._drawn(hang.probability):
            self._hold(answer, None)
        elif (delay_s := self._delay_s(generation)) > 0:
            if self._hold(answer, delay_s):
                answer.open()
        elif self.life.submit(answer):
            answer.open()
        else:
            self._refuse(exchange)

    def _fail_before_parsing(self, exchange: Exchange) -> bool:
        faults = self.faults
        if faults.drain is not None:
            exchange.respond(500, error_body(500, _SHUTDOWN, "InternalServerError"))
            return True
        if self._core_dead:
            exchange.respond(500, error_body(500, _ENGINE_FAILED, "InternalServerError"))
            return True
        if faults.fail_fast is not None and self._drawn(faults.fail_fast.probability):
            status = faults.fail_fast.status
            exchange.respond(status, error_body(status, _ENGINE_FAILED, "InternalServerError"))
            return True
        return False

    def _saturated(self, exchange: Exchange, generation: Generation) -> bool:
        saturate = self.faults.saturate
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
        limit = self.faults.limit
        if limit is None or self.life.in_flight < limit.requests:
            return False
        self.life.metrics.refused += 1
        _say_busy(exchange, generation.kind, in_stream=generation.stream and self._drawn(limit.in_stream))
        return True

    def _refuse(self, exchange: Exchange) -> None:
        """The model's own no: a full queue, or a provider's rate limit."""
        if self.spec.provider is None:
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
        if self.life.held >= HELD_MAX:
            self._refuse(answer.exchange)
            return False
        self.life.hold(answer, delay_s)
        return True

    def _delay_s(self, generation: Generation) -> float:
        """How long a slow first token is held back, so that it comes about `ttft_ms` after the request."""
        slow = self.faults.slow
        if slow is None or slow.ttft_ms == 0 or not self._drawn(slow.probability):
            return 0.0
        if self.spec.provider is not None:
            alone_ms = self.spec.provider.ttft_ms
        else:
            tokens = generation.prompt_tokens
            alone_ms = self.spec.preset.step_ms(
                decoders=0, prefill_tokens=tokens, kv_read=0, attention_work=tokens * tokens / 2
            )
        return max(0.0, slow.ttft_ms - alone_ms / self.spec.speed) / 1000

    def _answer(self, exchange: Exchange, generation: Generation) -> Answer:
        kind = generation.kind
        voice = Voice(
            kind=kind,
            # vLLM takes a client's id for its own, so ids need not be unique.
            id=f"{_ID_PREFIX[kind]}{exchange.headers.get('x-request-id') or format(self._rng.getrandbits(64), '016x')}",
            created=int(time.time()),
            model=self.spec.model,
            fingerprint=self._fingerprint,
            prompt_tokens=generation.prompt_tokens,
            first_word=self._rng.randrange(len(WORDS)),
            split_every=0 if self.faults.split is None else self.faults.split.every,
        )
        tokens, reason = self._output(generation)
        cut = self.faults.cut
        if cut is not None and not self._drawn(cut.probability):
            cut = None
        return Answer(exchange, generation, voice, output_tokens=tokens, reason=reason, cut=cut)

    def _output(self, generation: Generation) -> tuple[int, str]:
        """Output tokens and finish reason: drawn, within what the client and the context allow."""
        if generation.kind is Kind.EMBEDDING:
            return 1, "stop"
        room = self.context_tokens - generation.prompt_tokens
        limit = room if generation.max_tokens is None else min(room, generation.max_tokens)
        if generation.ignore_eos:
            return limit, "length"
        drawn = round(self._rng.lognormvariate(math.log(_OUTPUT_MEDIAN), _OUTPUT_SIGMA))
        tokens = max(1, drawn, generation.min_tokens)
        return (tokens, "stop") if tokens < limit else (limit, "length")


def _say_busy(exchange: Exchange, kind: Kind, *, in_stream: bool) -> None:
    if in_stream:
        exchange.start_stream()
        exchange.send(*error_frames(kind, 503, BUSY, "Service Unavailable"))
        exchange.end()
    else:
        exchange.respond(503, error_body(503, BUSY, "Service Unavailable"))


class EngineFleet:
    """Several engines of one event loop that know each other by name."""

    def __init__(self, engines: list[EngineServer]) -> None:
        self.engines = engines

    def __repr__(self) -> str:
        return f"EngineFleet({self.engines})"

    def names(self) -> list[str]:
        """Names in order."""
        return [engine.name for engine in self.engines]

    def find(self, name: str) -> EngineServer | None:
        """The engine of that name."""
        return next((engine for engine in self.engines if engine.name == name), None)

    async def start(self) -> None:
        """Start all.

        Raises:
            ValueError: Two engines have the same name.
        """
        if len(set(self.names())) != len(self.engines):
            raise ValueError(f"engine names must be unique, got {', '.join(self.names())}")
        for engine in self.engines:
            engine.fleet = self
            await engine.start()

    async def stop(self) -> None:
        """Stop all."""
        await asyncio.gather(*(engine.stop() for engine in self.engines))


if __name__ == "__main__":
    from evenload.demo.engine_main import main

    main()
