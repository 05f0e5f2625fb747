"""Bounds of the data plane over real sockets: memory over many requests, memory of one slow reader, bodies.

`make aborts` runs the soak in full length (DATAPLANE_REQUESTS=200000), and prints what it saw.
"""

import asyncio
import contextlib
import gc
import json
import os
import random
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from evenload.router.fake_wire import END, SSE_HEAD, Cut, Stall, chunk, content, error, finish, response, role
from evenload.router.fakes import post
from evenload.router.limits import Limits
from evenload.router.upstream import Upstream, UpstreamError
from tests.router.stage import GOOD, STREAM, Fleet, fleet, stage, until

REQUESTS = int(os.environ.get("DATAPLANE_REQUESTS", "2000"))
BLOCKS = 10
AT_ONCE = 50
LEAVING = 0.27  # of requests; some leave before they have been sent on, or when the answer is already there
ABORTED, BROKEN = 0.2, 0.01  # what must become of them at least
STALL_S = 0.06  # longer than a tick of the watch: behind uvicorn a leaving is noticed no sooner
MIB = 1024 * 1024


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def ask(client: Upstream, rng: random.Random, requests: int) -> None:
    """One request after the other; some are aborted, anywhere between their head and the middle of the answer."""
    for _ in range(requests):
        body = json.dumps({**STREAM, "user": rng.random()}).encode()
        patience_s = rng.uniform(0.0, STALL_S) if rng.random() < LEAVING else 60.0
        with contextlib.suppress(TimeoutError, UpstreamError):
            async with asyncio.timeout(patience_s):
                answer = await client.request("POST", b"/v1/chat/completions", [], body)
                try:
                    while await answer.read_chunk():
                        pass
                finally:
                    answer.release()


def kept(f: Fleet) -> dict[str, int]:
    """Sizes of everything that has an entry per request or event."""
    dispatcher = f.router.dispatcher
    return {
        "watches": len(f.router.asgi._exchange._watches),
        "waiting": len(dispatcher.book._waiting),
        "tail": sum(dispatcher.view.tail_events(name) for name in "ab"),
        "buffered": dispatcher.emitter.buffered,  # type: ignore[attr-defined]
        "connections": sum(upstream.idle_connections for upstream in dispatcher.upstreams.values()),
    }


@pytest.mark.timeout(180 + REQUESTS / 50)
async def test_memory_stays_flat_over_many_requests_of_which_a_fifth_is_aborted() -> None:
    rng = random.Random(3)
    slow = [SSE_HEAD, chunk(role()), Stall(STALL_S), chunk(content("x")), Stall(STALL_S), chunk(finish()), END]
    cut = [SSE_HEAD, chunk(role() + content("x")), Stall(0.002), Cut()]
    # Alike on both: an instance that failed more than the other would soon not be asked any more.
    scripts = [*[slow] * 16, GOOD, GOOD, [error(500, "boom")], cut]
    each = [scripts[i % 20] for i in range(REQUESTS)]  # to the end, for the last script would repeat
    resident: list[int] = []
    async with fleet(each, each) as f:
        client = Upstream(f.url)
        for _ in range(BLOCKS):
            await asyncio.gather(*(ask(client, rng, REQUESTS // BLOCKS // AT_ONCE) for _ in range(AT_ONCE)))
            for engine in f.engines.values():
                engine.requests[:] = engine.requests[:1]  # what the fakes remember is not the router's
            gc.collect()
            resident.append(resident_bytes())
        client.close()
        dispatcher = f.router.dispatcher
        await until(lambda: dispatcher.book.in_flight == 0 and not dispatcher.book._waiting)
        outcomes = await f.outcomes("a") + await f.outcomes("b")
        sizes = kept(f)
    mib = [round(size / MIB, 1) for size in resident]
    print(f"{REQUESTS} requests; attempts {dict(outcomes)}; afterwards {sizes}; resident MiB after each tenth {mib}")
    assert outcomes["client_gone"] > ABORTED * REQUESTS
    assert outcomes["ok"] > 0.4 * REQUESTS
    assert min(outcomes["http_error"], outcomes["upstream_cut"]) > BROKEN * REQUESTS
    assert sizes["watches"] == sizes["waiting"] == 0
    assert sizes["buffered"] == 1000  # reached: the bound of this fleet's settings
    assert dispatcher.emitter.lost_events > 0  # type: ignore[attr-defined]  # beyond it, counted
    assert sizes["tail"] <= 2 * 4096
    assert sizes["connections"] <= 2 * 256
    assert resident[-1] - resident[BLOCKS // 2 - 1] < 8 * MIB, mib


def slow_reader(url: str, body: bytes, headers: bytes = b"") -> socket.socket:
    """A client with a small window that has sent its request."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    client.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n" % (headers, len(body))
    client.sendall(head + body)
    client.setblocking(False)
    return client


async def test_a_reader_of_a_kilobyte_a_second_holds_less_than_a_mebibyte_and_stops_the_engine() -> None:
    big = chunk(content("x" * 65_000))
    script: list[Any] = [SSE_HEAD, chunk(role()), *([big] * 3200), chunk(finish()), END]  # 208 MB, one object
    async with stage(script) as s:
        loop = asyncio.get_running_loop()
        gc.collect()
        tracemalloc.start()
        try:
            base = tracemalloc.get_traced_memory()[0]
            client = slow_reader(s.url, json.dumps(STREAM).encode())
            written, got = -1, 0
            while got < 3072 or written != s.engines[0].written_bytes:  # and until it stands still
                written = s.engines[0].written_bytes
                got += len(await loop.sock_recv(client, 1024))
                await asyncio.sleep(1.0)
            held = tracemalloc.get_traced_memory()[1] - base  # at its peak; what the kernel holds is not ours
        finally:
            tracemalloc.stop()
        assert held < MIB
        assert written < 20 * MIB
        client.close()
        await until(lambda: s.engines[0].aborts == 1 and s.dispatcher.in_flight == 0)  # though its send was blocked
        assert s.ends == [("a", "client_gone", "client_left")]


@pytest.mark.parametrize("frame_bytes", [200, 16_000, 65_000])
async def test_a_reader_that_stops_reading_stops_the_engine(frame_bytes: int) -> None:
    big = chunk(content("x" * frame_bytes))
    burst = big * (256_000 // frame_bytes)  # more than one read, so that some of it waits when the stream begins
    script: list[Any] = [SSE_HEAD, chunk(role()), *([burst] * 400), chunk(finish()), END]
    async with stage(script) as s:
        client = slow_reader(s.url, json.dumps(STREAM).encode())
        await asyncio.get_running_loop().sock_recv(client, 1024)
        written = -1
        while written != s.engines[0].written_bytes:
            written = s.engines[0].written_bytes
            await asyncio.sleep(0.5)
        client.close()
        assert 0 < written < 20 * MIB
        await until(lambda: s.engines[0].aborts == 1 and s.dispatcher.in_flight == 0)


async def test_a_body_of_32_mib_passes_by_default_and_a_longer_one_is_refused_unread() -> None:
    body = b'{"model":"m","prompt":"' + b"x" * (32 * MIB - 25) + b'"}'
    assert len(body) == 32 * MIB == Limits().body_bytes_max
    async with stage([response(200, b"{}")], limits=Limits()) as s:
        assert (await post(s.url, body, path="/v1/completions")).status == 200
        assert s.engines[0].requests[0].body == body
        reader, writer = await asyncio.open_connection("127.0.0.1", int(s.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n{" % (len(body) + 1))
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")  # though one byte of the body has been sent
        while (await reader.readline()).strip():
            pass
        assert json.loads(await reader.read(2000))["error"]["code"] == "request_too_large"
        writer.close()
