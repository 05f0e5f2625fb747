"""The client leaves, or reads slowly: the engine stops, nobody is blamed and no lease is left."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from evenload.router.fake_wire import (
    DONE,
    END,
    SSE_HEAD,
    Cut,
    Gate,
    Reset,
    Script,
    Stall,
    chunk,
    content,
    error,
    error_frame,
    finish,
    role,
    sse,
)
from evenload.router.fakes import post
from evenload.router.limits import Limits
from evenload.router.upstream import Upstream
from tests.router.stage import BUSY, GOOD, PLAIN, STREAM, Stage, stage, until


async def leave_when(s: Stage, condition: Callable[[], Any], body: object = STREAM) -> None:
    client = Upstream(s.url)
    data = json.dumps(body).encode()
    task = asyncio.create_task(client.request("POST", b"/v1/chat/completions", [], data))
    await until(condition)
    if task.done():
        task.result().abort()
    else:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("body", [STREAM, PLAIN], ids=["stream", "plain"])
async def test_a_client_that_leaves_during_prefill_stops_the_engine_and_blames_nobody(body: Any) -> None:
    async with stage([Stall()]) as s:
        await leave_when(s, lambda: s.engines[0].requests, body)
        await until(lambda: s.engines[0].aborts == 1 and s.dispatcher.in_flight == 0, seconds=1.0)
        assert s.ends == [("a", "client_gone", "client_left")]


async def test_a_client_that_leaves_while_the_head_is_held_stops_the_engine() -> None:
    async with stage([*sse(role(), end=False), Stall()]) as s:
        await leave_when(s, lambda: s.engines[0].written_bytes > len(SSE_HEAD))
        await until(lambda: s.engines[0].aborts == 1, seconds=1.0)
        await until(lambda: s.dispatcher.in_flight == 0)
        assert s.ends == [("a", "client_gone", "client_left")]


async def test_a_client_that_leaves_in_the_middle_of_a_stream_stops_the_engine() -> None:
    async with stage([SSE_HEAD, chunk(role() + content("Hel")), Stall()]) as s:
        client = Upstream(s.url)
        got = await client.request("POST", b"/v1/chat/completions", [], json.dumps(STREAM).encode())
        assert await got.read_chunk()
        got.abort()
        await until(lambda: s.engines[0].aborts == 1 and s.dispatcher.in_flight == 0, seconds=1.0)
        assert s.ends == [("a", "client_gone", "client_left")]
        assert s.dispatcher.leases[0].first_token_ms is not None


async def test_a_client_that_leaves_during_a_back_off_is_not_served() -> None:
    limits = Limits(back_off_s=5.0, back_off_s_max=9.0)
    async with stage([[error(503, BUSY)], GOOD], limits=limits) as s:
        await leave_when(s, lambda: len(s.dispatcher.leases) == 2)
        await until(lambda: s.dispatcher.in_flight == 0, seconds=1.0)
        assert s.dispatcher.kinds == ["saturated", "client_gone"]
        assert len(s.engines[0].requests) == 1


async def test_a_client_that_leaves_before_its_body_is_complete_books_nothing() -> None:
    async with stage(GOOD) as s:
        _, writer = await asyncio.open_connection("127.0.0.1", int(s.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await post(s.url, STREAM)).status == 200
        assert len(s.dispatcher.leases) == 1


async def test_a_slow_client_stops_the_engine_and_is_not_timed_out() -> None:
    big = chunk(content("x" * 30_000))
    script: Script = [SSE_HEAD, chunk(role()), *([big] * 1500), chunk(finish()), END]
    async with stage(script, limits=Limits(idle_s=0.3)) as s:
        client = Upstream(s.url)
        got = await client.request("POST", b"/v1/chat/completions", [], json.dumps(STREAM).encode())
        written = -1
        while written != s.engines[0].written_bytes:  # until it stands still, for longer than the idle limit
            written = s.engines[0].written_bytes
            await asyncio.sleep(0.4)
        assert written < 20_000_000  # of 45 MB
        size = 0
        while part := await got.read_chunk():
            size += len(part)
        assert size > 45_000_000
        got.release()
        client.close()
        await until(lambda: s.dispatcher.in_flight == 0)
        assert s.ends == [("a", "ok", "")]


async def test_many_requests_with_every_kind_of_end_leak_no_lease() -> None:
    gate = asyncio.Event()
    scripts: list[Script] = [
        GOOD,
        [error(500, "boom")],
        [SSE_HEAD, chunk(role() + content("x")), Stall(0.01), Cut()],
        [Gate(gate), Cut()],
        [Reset()],
        sse(error_frame(503, BUSY), DONE),
    ]
    async with stage([scripts[i % 6] for i in range(120)], GOOD) as s:
        tasks = [asyncio.create_task(post(s.url, STREAM)) for _ in range(100)]
        await until(lambda: len(s.engines[0].requests) >= 60)
        for task in tasks[::5]:
            task.cancel()
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: s.dispatcher.in_flight == 0)
        assert len(s.dispatcher.leases) >= 100
