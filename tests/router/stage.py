"""What tests of the data plane stand on: a real server on one side, scripted upstreams on the other.

`stage` puts a scripted dispatcher between, `fleet` the real one: view, policy, leases, metrics, all but Kafka.
"""

import asyncio
import contextlib
import json
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from evenload.router.build import Router, build
from evenload.router.fake_wire import DONE, answer, content, finish, role, usage
from evenload.router.fakes import FakeDispatcher, Got, ScriptedUpstream, post, serve
from evenload.router.limits import Limits
from evenload.router.proxy import Proxy
from evenload.router.wire import wire_of
from evenload.routing import InstanceView
from evenload.schemas import InstanceState
from evenload.scoring.damping import raw_score
from evenload.settings import Settings

STREAM = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
PLAIN = {**STREAM, "stream": False}
FAST = Limits(back_off_s=0.01, back_off_s_max=0.2)
BUSY = "The engine is currently busy and cannot accept new requests."
GOOD = answer("Hel", "lo")
GOOD_BODY = role() + content("Hel") + content("lo") + finish() + usage(11, 2) + DONE
JSON_ANSWER = b'{"object":"chat.completion", "choices":[], "usage":{"prompt_tokens":11,"completion_tokens":4}}'


SERVERS = ("native", "uvicorn")
server = SERVERS[0]  # which one; conftest.py sets it for each test


@dataclass
class Stage:
    """A proxy with a scripted dispatcher before scripted engines."""

    url: str
    dispatcher: FakeDispatcher
    engines: list[ScriptedUpstream]

    @property
    def ends(self) -> list[tuple[str, str | None, str]]:
        """Instance, kind and cause of each attempt's end."""
        return [(lease.instance, lease.kind, lease.end["cause"]) for lease in self.dispatcher.leases]


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def inner_app(scope: Any, receive: Any, send: Any) -> None:
    """Answer 299 with the path, and say which of the two servers it is."""
    name = b"uvicorn" if wire_of(scope) is None else b"native"
    await send({"type": "http.response.start", "status": 299, "headers": [(b"x-served-by", name)]})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


@contextlib.asynccontextmanager
async def stage(
    *scripts: Any, limits: Limits = FAST, rng: random.Random | None = None, **options: Any
) -> AsyncIterator[Stage]:
    """Serve a proxy before one engine per argument, "a", "b" ...: a script, a list of scripts, the URL of
    another engine, or None, which refuses.

    Ends with the check that each lease was finished exactly once.
    """
    async with contextlib.AsyncExitStack() as stack:
        engines, instances = await _engines(stack, scripts)
        dispatcher = FakeDispatcher(instances, **options)
        url = await stack.enter_async_context(serve(Proxy(inner_app, dispatcher, limits, rng=rng), server))
        yield Stage(url, dispatcher, list(engines.values()))
        await until(lambda: dispatcher.in_flight == 0)
        assert all(lease.finishes == 1 for lease in dispatcher.leases)
        dispatcher.close()


async def _engines(
    stack: contextlib.AsyncExitStack, scripts: tuple[Any, ...]
) -> tuple[dict[str, ScriptedUpstream], dict[str, str]]:
    engines: dict[str, ScriptedUpstream] = {}
    instances: dict[str, str] = {}
    for name, script in zip("abcdef", scripts, strict=False):
        if isinstance(script, str):
            instances[name] = script
            continue
        if script is None:
            with socket.create_server(("127.0.0.1", 0)) as closed:
                instances[name] = f"http://127.0.0.1:{closed.getsockname()[1]}"
            continue
        each = script if script and isinstance(script[0], list) else [script]
        engines[name] = await stack.enter_async_context(ScriptedUpstream(*each))
        instances[name] = engines[name].url
    return engines, instances


def events(got: Got) -> list[Any]:
    """Return the decoded data frames of a stream."""
    lines = [line[6:] for line in got.body.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


# The same before the real routing.


@dataclass
class Fleet:
    """A real router before scripted engines."""

    url: str
    router: Router
    engines: dict[str, ScriptedUpstream]
    settings: Settings

    def view(self, name: str) -> InstanceView:
        """What the router believes of an instance now."""
        dispatcher = self.router.dispatcher
        now_ms = dispatcher.log_clock.now_ms(dispatcher.clock())
        return dispatcher.view.read(name, dispatcher.book.counts(name), now_ms)

    def state(self, name: str) -> InstanceState:
        """The folded state of it."""
        return self.view(name).state

    def raw_score(self, name: str) -> float:
        """The score that it deserves, before the damping of its warm-up."""
        view = self.view(name)
        return raw_score(view.state, view.state.tick, view.config)

    def requests(self, name: str) -> int:
        """How many requests an engine got."""
        return len(self.engines[name].requests)

    async def metrics(self) -> dict[str, float]:
        """The samples of the metrics page by name and labels."""
        page = (await post(self.url, b"", path="/metrics", method="GET")).body.decode()
        lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    async def outcomes(self, name: str) -> Counter[str]:
        """How attempts at an instance ended, from the metrics page."""
        found: Counter[str] = Counter()
        for sample, value in (await self.metrics()).items():
            if sample.startswith("evenload_router_attempts_total") and f'instance="{name}"' in sample:
                found[sample.partition('outcome="')[2].partition('"')[0]] += int(value)
        return found


@contextlib.asynccontextmanager
async def fleet(
    *scripts: Any,
    models: tuple[str, ...] = ("tiny",),
    key: str | None = None,
    router: dict[str, Any] | None = None,
    **pool: Any,
) -> AsyncIterator[Fleet]:
    """Serve a real router without Kafka before engines as in `stage`; `pool` are further settings of the pool, `router`
    of the router.

    Each engine's credential is `key`, if there is one.

    Ends with the check that nothing is in flight any more.
    """
    async with contextlib.AsyncExitStack() as stack:
        engines, instances = await _engines(stack, scripts)
        env = "KEY" if key else None
        made = [{"id": name, "url": url, "kind": "none", "api_key_env": env} for name, url in instances.items()]
        settings = Settings.model_validate(
            {
                "kafka": {"bootstrap": "127.0.0.1:1"},
                "router": {"seed": 1, **(router or {})},
                "collector": {"buffer_events_max": 1000},
                "pools": [{"name": "p", "models": models, "policy": "predictive", "instances": made, **pool}],
            }
        )
        yield await stack.enter_async_context(replica(settings, engines, {"KEY": key} if key else {}))


@contextlib.asynccontextmanager
async def replica(
    settings: Settings,
    engines: dict[str, ScriptedUpstream],
    environ: dict[str, str] | None = None,
    tracing: Any = None,
) -> AsyncIterator[Fleet]:
    """Serve one more router before the same engines."""
    router = build(settings, environ or {}, tracing=tracing)
    dispatcher = router.dispatcher
    ticker = asyncio.create_task(_tick(dispatcher.tick))
    try:
        async with serve(router.front, server) as url:
            yield Fleet(url, router, engines, settings)
            await until(lambda: dispatcher.book.in_flight == 0)
        for name in dispatcher.upstreams:
            assert dispatcher.book.counts(name).values() == (0, 0, 0, 0)
    finally:
        ticker.cancel()
        for upstream in dispatcher.upstreams.values():
            upstream.close()


async def _tick(tick: Callable[[], None]) -> None:
    while True:
        tick()
        await asyncio.sleep(0.02)
