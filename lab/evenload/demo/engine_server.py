"""Simulated engines over HTTP, shaped like vLLM 0.32, with faults on demand.

    python -m evenload.demo.engine_server --port 9100 --count 6
    curl -s localhost:9100/v1/chat/completions -d '{"stream":true,"messages":[{"role":"user","content":"hi"}]}'
    curl -s -X POST localhost:9100/admin/faults -d '{"slow":{"ttft_ms":3500}}'      # see faults.py for all of them
    curl -s -X POST 'localhost:9101/admin/faults?engine=engine-0' -d '{"crash":{}}' # by way of a sibling
    curl -s -X DELETE 'localhost:9101/admin/faults?engine=engine-0'

An `EngineServer` is one engine on one port; several share an event loop, and an `EngineFleet` lets each reach its
siblings' faults, since a crashed engine does not answer for itself. The model is `evenload.sim.engine.Engine` driven by
the real clock times a speed factor; everything here only turns its token counts into bytes. This file has the pages and
the wiring; `engine_process.py` lives and fails, `engine_intake.py` takes requests, `engine_admin.py` sets faults.
"""

import asyncio
import time
from random import Random
from typing import Final
from zlib import crc32

import msgspec

from evenload.demo.engine_admin import EngineAdmin
from evenload.demo.engine_intake import EngineIntake
from evenload.demo.engine_life import EngineSpec
from evenload.demo.engine_metrics import CONTENT_TYPE
from evenload.demo.engine_process import EngineProcess
from evenload.demo.http_server import Exchange, HttpListener
from evenload.demo.openai_answer import models_body
from evenload.demo.openai_request import Kind
from evenload.sim.engine import Engine
from evenload.sim.presets import BLOCK_TOKENS
from evenload.sim.presets import preset as find_preset
from evenload.sim.provider import ProviderModel

VERSION: Final = "0.32.0"
CONTEXT_TOKENS_MAX: Final = 131_072

_KINDS: Final = {
    "/v1/chat/completions": Kind.CHAT,
    "/v1/completions": Kind.COMPLETION,
    "/v1/embeddings": Kind.EMBEDDING,
    "/v1/responses": Kind.RESPONSE,
    "/v1/messages": Kind.MESSAGE,
}


class EngineServer(EngineProcess):
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
        fits = (engine_preset.kv_blocks - 1) * BLOCK_TOKENS
        self.context_tokens = min(CONTEXT_TOKENS_MAX, fits) if context_tokens is None else context_tokens
        if not 2 <= self.context_tokens <= fits:
            raise ValueError(f"context_tokens must be in 2..{fits}, the size of the KV cache, got {context_tokens}")
        spec = EngineSpec(preset=engine_preset, model=model, provider=provider, queue_max=queue_max, speed=speed)
        super().__init__(name, spec, Random(f"{seed}:{name}"), HttpListener(self._handle, host, port))
        self.fleet = EngineFleet([self])
        self._intake = EngineIntake(self, self.context_tokens, f"vllm-{VERSION}-{crc32(name.encode()):08x}")
        self._admin = EngineAdmin(name)

    async def stop(self) -> None:
        """Drop everything and be gone."""
        await super().stop()
        await self._admin.stop()

    def _handle(self, exchange: Exchange) -> None:
        kind = _KINDS.get(exchange.path)
        if kind is not None:
            if exchange.method == "POST":
                self._intake.take(exchange, kind)
            else:
                exchange.respond(405, b'{"detail":"Method Not Allowed"}', extra=(("allow", "POST"),))
        elif exchange.path == "/admin/faults":
            self._admin.handle(exchange, self.fleet.engines)
        else:
            self._read(exchange)

    def _read(self, exchange: Exchange) -> None:
        life, path = self.life, exchange.path
        own = self.spec.provider is None
        if path == "/v1/models":
            permission = f"modelperm-{crc32(self.name.encode()):016x}"
            exchange.respond(200, models_body(self.spec.model, int(life.started_s), self.context_tokens, permission))
        elif own and path == "/health":
            exchange.respond(503 if self.core_dead else 200, b"", content_type=None)
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


class EngineFleet:
    """Several engines of one event loop that know each other by name."""

    def __init__(self, engines: list[EngineServer]) -> None:
        self.engines = engines

    def __repr__(self) -> str:
        return f"EngineFleet({self.engines})"

    def names(self) -> list[str]:
        """Names in order."""
        return [engine.name for engine in self.engines]

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
