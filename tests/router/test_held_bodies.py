"""The bound on the bytes of request bodies that a router holds, over real sockets."""

import asyncio
import contextlib
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from evenload.router.admission import Shed
from evenload.router.fake_wire import Gate, Stall, chunk, error, response
from evenload.router.fakes import Got, post
from evenload.router.held_bodies import HeldBodies
from tests.router.stage import GOOD, JSON_ANSWER, STREAM, Fleet, fleet, until

BOUND = 1_000_000
BOUNDS = {"max_body_bytes": 700_000, "max_held_body_bytes": BOUND}
BIG = {**STREAM, "stream": False, "user": "x" * 600_000}  # comes in pieces
BIG_BYTES = len(json.dumps(BIG).encode())
SHED = 'evenload_router_admission_shed_total{cause="held_bytes",pool=""}'
HELD = "evenload_router_held_body_bytes"


def test_bytes_are_counted_once_and_given_back_once() -> None:
    bodies = HeldBodies(10)
    first, second = bodies.hold(), bodies.hold()
    first.reach(4)
    first.fit(10)
    first.reach(6)
    assert bodies.bytes_held == 6
    second.reach(4)
    for refused in (second.reach, second.fit):
        with pytest.raises(Shed):
            refused(5)
    assert (bodies.bytes_held, bodies.shed) == (10, 2)
    first.release()
    first.release()
    second.reach(10)
    second.release()
    assert bodies.bytes_held == 0


@contextlib.asynccontextmanager
async def unfinished(f: Fleet, *headers: bytes, begun: bytes = b"x" * 599_999) -> AsyncIterator[asyncio.StreamReader]:
    """A request whose body has begun."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(f.url.rsplit(":", 1)[1]))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%b\r\n%b" % (b"".join(headers), begun))
    try:
        yield reader
    finally:
        writer.close()


def told(length: int) -> bytes:
    return b"content-length: %d\r\n" % length


CHUNKED = b"transfer-encoding: chunked\r\n"


def bytes_held(f: Fleet) -> int:
    return f.router.asgi.bodies.bytes_held


def check_shed(got: Got) -> None:
    assert (got.status, got.error["code"], got.headers[b"retry-after"]) == (429, "overloaded", b"1")


async def test_who_tells_a_length_that_has_no_room_is_shed_before_any_of_it_has_come() -> None:
    async with fleet(GOOD, router=BOUNDS) as f:
        async with unfinished(f, told(600_000)):
            await until(lambda: bytes_held(f) == 599_999)
            async with unfinished(f, told(600_000), begun=b"") as second:  # before a byte of it has been read
                assert (await second.readline()).startswith(b"HTTP/1.1 429 ")
            check_shed(await post(f.url, BIG))
            assert (await post(f.url, STREAM)).status == 200, "a small one has room"
            samples = await f.metrics()
            assert (samples[SHED], samples[HELD]) == (2, 599_999)
            assert f.requests("a") == 1
        await until(lambda: bytes_held(f) == 0)
        assert (await post(f.url, BIG)).status == 200


async def test_who_tells_lengths_and_sends_little_takes_nobodys_room() -> None:
    async with fleet(GOOD, router=BOUNDS) as f, contextlib.AsyncExitStack() as stack:
        for _ in range(10):
            await stack.enter_async_context(unfinished(f, told(600_000), begun=b"{"))
        await until(lambda: bytes_held(f) == 10)
        assert (await post(f.url, BIG)).status == 200


async def test_nobody_is_told_to_continue_who_has_no_room() -> None:
    async with fleet(GOOD, router=BOUNDS) as f, unfinished(f, told(600_000)):
        await until(lambda: bytes_held(f) == 599_999)
        async with unfinished(f, told(600_000), b"expect: 100-continue\r\n", begun=b"") as second:
            assert (await second.readline()).startswith(b"HTTP/1.1 429 ")


async def test_a_chunked_body_counts_as_it_comes() -> None:
    async with fleet(GOOD, router=BOUNDS) as f, unfinished(f, told(600_000)):
        async with unfinished(f, CHUNKED, begun=chunk(b"x" * 300_000)) as second:
            await until(lambda: bytes_held(f) == 899_999)
            async with unfinished(f, CHUNKED, begun=chunk(b"x" * 300_000)) as third:
                assert (await third.readline()).startswith(b"HTTP/1.1 429 ")
            assert bytes_held(f) == 899_999
            del second
        await until(lambda: bytes_held(f) == 599_999)


async def test_a_body_counts_until_its_request_is_over() -> None:
    release = asyncio.Event()
    async with fleet([Gate(release), response(200, JSON_ANSWER)], router=BOUNDS) as f:
        first = asyncio.create_task(post(f.url, BIG))
        await until(lambda: f.requests("a") == 1)
        assert bytes_held(f) == BIG_BYTES
        check_shed(await post(f.url, BIG))
        release.set()
        assert (await first).status == 200
        assert bytes_held(f) == 0
        assert (await post(f.url, BIG)).status == 200
        assert await f.outcomes("a") == {"ok": 2}, "what was shed counts against nobody"


@pytest.mark.parametrize(
    ("script", "body", "path", "status"),
    [
        (GOOD, BIG, "/v1/chat/completions", 200),
        (GOOD, b"{" * 600_000, "/v1/chat/completions", 400),
        (GOOD, {**BIG, "model": "nobody"}, "/v1/chat/completions", 404),
        (GOOD, b"x" * 700_001, "/v1/chat/completions", 413),
        (GOOD, b"x" * 600_000, "/v1/audio/translations", 400),
        ([error(400, "bad")], BIG, "/v1/chat/completions", 400),
        (None, BIG, "/v1/chat/completions", 502),
    ],
)
async def test_each_way_to_end_gives_the_bytes_back(script: Any, body: Any, path: str, status: int) -> None:
    async with fleet(script, router=BOUNDS) as f:
        for _ in range(3):  # two would not fit
            assert (await post(f.url, body, path=path)).status == status
            assert bytes_held(f) == 0


async def test_a_client_that_leaves_gives_the_bytes_back() -> None:
    async with fleet([Stall()], router=BOUNDS) as f:
        task = asyncio.create_task(post(f.url, BIG))
        await until(lambda: f.requests("a") == 1)
        assert bytes_held(f) == BIG_BYTES
        task.cancel()
        await until(lambda: bytes_held(f) == 0)


async def test_twenty_clients_do_not_make_the_router_hold_more_than_the_bound() -> None:
    bounds: dict[str, Any] = {"max_body_bytes": 3_000_000, "max_held_body_bytes": 6_000_000}
    bounds["admission"] = {"max_concurrent": 1, "queue_max": 0}
    piece = b"a" * 2_000_000
    async with fleet(GOOD, router=bounds) as f:
        gc.collect()
        tracemalloc.start()
        try:
            base = tracemalloc.get_traced_memory()[0]
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(20):
                    await stack.enter_async_context(unfinished(f, told(3_000_000), begun=piece))
                await until(lambda: f.router.asgi.bodies.shed >= 17)  # three of two million have room
                await asyncio.sleep(0.3)  # what they send on is read, to tell them, and dropped
                held = tracemalloc.get_traced_memory()[0] - base
                assert bytes_held(f) == 6_000_000
        finally:
            tracemalloc.stop()
        assert held < 12_000_000  # 4 MB of bodies, and what the clients in this process have not sent yet; 40 MB came
        await until(lambda: bytes_held(f) == 0)
