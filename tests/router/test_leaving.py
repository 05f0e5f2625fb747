"""When the router is stopped and an answer takes longer than it waits, the client is told."""

import asyncio
import json
from typing import Any

import pytest

from evenload.router.fake_wire import SSE_HEAD, Stall, chunk, content, role
from evenload.router.fakes import FakeDispatcher, ScriptedUpstream, post, serve
from evenload.router.proxy import Proxy
from tests.router import stage
from tests.router.stage import FAST, PLAIN, STREAM, inner_app, until

BEGUN = [SSE_HEAD, chunk(role()), chunk(content("Hel")), Stall()]


@pytest.mark.parametrize(
    ("script", "body"),
    [([Stall()], PLAIN), ([Stall()], STREAM), ([SSE_HEAD, chunk(role()), Stall()], STREAM)],
    ids=["plain", "stream", "held"],
)
async def test_who_has_got_nothing_gets_a_503(script: list[Any], body: dict[str, Any]) -> None:
    got, dispatcher = await stopped(script, body, lambda engine: len(engine.requests) == 1)
    assert (got.status, got.error["code"], got.headers[b"retry-after"]) == (503, "router_stopped", b"1")
    assert dispatcher.kinds == ["client_gone"], "nobody is to blame"


async def test_a_stream_that_has_begun_ends_with_an_event() -> None:
    got, dispatcher = await stopped(BEGUN, STREAM, lambda engine: engine.written_bytes > 0)
    assert got.status == 200
    *_, last = got.body.strip().split(b"\n\n")
    error = json.loads(last.partition(b"data: ")[2])["error"]
    assert error["code"] == "router_stopped"
    assert b"Hel" in got.body
    assert b"[DONE]" not in got.body
    assert dispatcher.kinds == ["client_gone"]


async def stopped(script: list[Any], body: dict[str, Any], begun: Any) -> tuple[Any, FakeDispatcher]:
    """Stop a router while it serves a request, and return what the client got."""
    async with ScriptedUpstream(script) as engine:
        dispatcher = FakeDispatcher({"a": engine.url})
        proxy = Proxy(inner_app, dispatcher, FAST)
        async with serve(proxy, stage.server, patient=True, timeout_graceful_shutdown=0.2) as url:
            asking = asyncio.create_task(post(url, body))
            await until(lambda: begun(engine))
            await asyncio.sleep(0.05)
        got = await asking
        await until(lambda: dispatcher.in_flight == 0)
        dispatcher.close()
        return got, dispatcher
