"""When the router is stopped and an answer takes longer than it waits, the client is told."""

import asyncio
import json
from typing import Any

import pytest

from evenload.router.fake_wire import SSE_HEAD, Stall, chunk, content, role
from evenload.router.fakes import FakeDispatcher, ScriptedUpstream, post, serve
from evenload.router.native import HttpProtocol
from evenload.router.proxy import Proxy
from evenload.router.server_protocol import BoundedProtocol
from tests.router import stage
from tests.router.stage import FAST, GOOD, PLAIN, STREAM, inner_app, until

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


BODY = json.dumps(PLAIN).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY)


@pytest.mark.parametrize(
    ("sent", "later", "status"),
    [
        (HEAD[:40], [], b""),
        (HEAD, [], b"408"),
        (HEAD + BODY[:5], [], b"408"),
        (HEAD, [BODY[:9], BODY[9:20], BODY[20:]], b"200"),
    ],
    ids=["half a head", "no body", "half a body", "a body that goes on coming"],
)
async def test_what_is_half_sent_does_not_hold_up_the_end(sent: bytes, later: list[bytes], status: bytes) -> None:
    protocol = {"native": HttpProtocol, "uvicorn": BoundedProtocol}[stage.server]
    leaving = type("Leaving", (protocol,), {"leave_s": 0.6, "linger_s": 0.2})
    loop = asyncio.get_running_loop()
    async with ScriptedUpstream(GOOD) as engine:
        dispatcher = FakeDispatcher({"a": engine.url})
        async with serve(
            Proxy(inner_app, dispatcher, FAST), http=leaving, patient=True, timeout_graceful_shutdown=20
        ) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(sent)
            await asyncio.sleep(0.1)
            began_s = loop.time()
            sending = asyncio.create_task(_drip(writer, later))
        assert loop.time() - began_s < 5.0, "it waits 20 s for what is under way"
        assert (await reader.read(300)).partition(b" ")[2][:3] == status
        await sending
        writer.close()
        dispatcher.close()


async def _drip(writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
    for piece in pieces:
        await asyncio.sleep(0.3)  # within the patience for each, beyond it for all
        writer.write(piece)
