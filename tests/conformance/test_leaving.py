"""A client that leaves, and one that reads slowly, are felt by the engine"""

import asyncio
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from evenload.router.fake_wire import END, SSE_HEAD, Script, Stall, chunk, content, finish, role

from .asks import BEGUN, PLAIN_ASK, STREAM_ASK
from .client import Wire
from .engines import Engines
from .target import Target

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

CANCELLED_S = 1.0
MIB = 1024 * 1024
BIG = chunk(content("x" * 65_000))
FRAMES = 3200  # 208 MB
HELD_BYTES_MAX = 24 * MIB  # by the kernel's buffers on the way, mostly


async def leave(target: Target, engines: Engines, script: Script, body: dict[str, Any], seen: bytes) -> None:
    """Leave after `seen` has come (or at once when the engine has been asked); the engine must notice in time."""
    engines.script(script)
    before = engines.aborts
    async with Wire(target.url) as wire:
        await wire.send("/v1/chat/completions", json.dumps(body).encode())
        async with asyncio.timeout(10.0):
            while not engines.asked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        if seen:
            await wire.until(seen)
        wire.abort()
    loop = asyncio.get_running_loop()
    until_s = loop.time() + CANCELLED_S
    while engines.aborts == before and loop.time() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert engines.aborts > before, f"the engine was still at work {CANCELLED_S:g} s after the client had left"
    await asyncio.sleep(0.3)
    assert len(engines.asked) == 1, f"asked {len(engines.asked)} times for a client that had left"


async def test_leaving_in_the_middle_of_a_stream_stops_the_engine_within_a_second(
    target: Target, engines: Engines
) -> None:
    more: list[Any] = [Stall(0.05), chunk(content("lo"))]
    await leave(target, engines, [*BEGUN, *more * 200], STREAM_ASK, b"Hel")


async def test_leaving_before_the_first_token_stops_the_engine_within_a_second(
    target: Target, engines: Engines
) -> None:
    await leave(target, engines, [SSE_HEAD, chunk(role()), Stall()], STREAM_ASK, b"")


async def test_leaving_before_the_head_stops_the_engine_within_a_second(target: Target, engines: Engines) -> None:
    await leave(target, engines, [Stall()], STREAM_ASK, b"")


async def test_leaving_while_a_json_answer_is_made_stops_the_engine_within_a_second(
    target: Target, engines: Engines
) -> None:
    await leave(target, engines, [Stall()], PLAIN_ASK, b"")


async def test_a_slow_reader_stops_a_fast_engine(target: Target, engines: Engines) -> None:
    engines.script([SSE_HEAD, chunk(role()), *([BIG] * FRAMES), chunk(finish()), END])
    before = engines.written_bytes
    loop = asyncio.get_running_loop()
    parts = urlsplit(target.url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        client.setblocking(False)
        await loop.sock_connect(client, (parts.hostname, parts.port))
        body = json.dumps(STREAM_ASK).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        await loop.sock_sendall(client, head + b"content-length: %d\r\n\r\n" % len(body) + body)
        async with asyncio.timeout(15.0):
            await loop.sock_recv(client, 1024)
        seen = -1
        async with asyncio.timeout(60.0):
            while seen != engines.written_bytes and engines.written_bytes - before < HELD_BYTES_MAX:
                seen = engines.written_bytes
                await asyncio.sleep(0.7)
    written = engines.written_bytes - before
    assert written < HELD_BYTES_MAX, f"the engine was not stopped: {written // MIB} MiB had been taken"
    assert written > 0, "the engine sent nothing"
