"""A plain request's way through the router, counted: `python benchmarks/dataplane/path.py [--instructions]`.

One process with the router as it is built for production, but without sockets and without Kafka's client: a client and
an engine of prepared bytes on the router's own loop, and after every BATCH requests their telemetry is folded and comes
back as a snapshot, which is in the figures (some 4 %). Bytecodes and calls are counted, so they are the same on any
machine, however busy; with `--instructions` (valgrind's) so is all that is done in C. Time is the least of some tries.
"""

import argparse
import asyncio
import gc
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import uvicorn
import uvloop

from benchmarks.dataplane.engine import PLAIN
from benchmarks.dataplane.load import body
from evenload.router.build import build
from evenload.router.connection import Connection
from evenload.router.native import HttpProtocol
from evenload.schemas import InstanceState, SnapshotBatch, decode_batch
from evenload.scoring import fold, snapshot
from evenload.scoring.config import DEFAULT
from evenload.settings import Settings

CLIENTS = 16
BATCH = 60  # requests per batch of telemetry: 20 ms at 3,000 requests/s
COUNTED = 600
TIMED = 2000
TRIES = 5
PARTITIONS = 4
_BODY = body()
_REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8080\r\ncontent-type: application/json\r\n"
    b"authorization: Bearer sk-bench\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
_INSTANCES = [{"id": f"engine-{n}", "url": f"http://127.0.0.1:{9000 + n}", "kind": "none"} for n in range(2)]
_SETTINGS = {
    "kafka": {"bootstrap": "127.0.0.1:1", "partitions": PARTITIONS},
    "router": {"seed": 1},
    "pools": [{"name": "chat", "models": ["tiny"], "policy": "health", "instances": _INSTANCES}],
}


class _Wire(asyncio.Transport):
    """A transport that hands on what is written."""

    def __init__(self, take: Any) -> None:
        super().__init__({"sockname": ("127.0.0.1", 8080), "peername": ("127.0.0.1", 50000)})
        self.write = take

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None: ...

    def abort(self) -> None: ...


class _Scorer:
    """Takes the router's telemetry as Kafka and the scorer would, and gives it snapshots."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher
        self._outbox = dispatcher.send_decision.__self__
        self._outbox._send = lambda *_: None
        self._states: dict[str, InstanceState] = {}
        self._offsets = [0] * PARTITIONS

    def score(self) -> None:
        dispatcher, emitter = self._dispatcher, self._dispatcher.emitter
        dispatcher.tick()
        self._outbox.flush()
        for lane in emitter._lanes:
            lane.expire()
            for pending in lane.group():
                data = pending.encoded("router", emitter.incarnation, emitter._clock())
                self._publish(lane.partition, data, pending.view_ms + 5)
                emitter.buffered -= lane.acknowledge(1).events

    def _publish(self, partition: int, data: bytes, now_ms: int) -> None:
        batch, offset = decode_batch(data), self._offsets[partition]
        self._offsets[partition] += 1
        changed = fold(self._states, batch, offset, now_ms, lambda _: DEFAULT)
        self._states.update(changed)
        self._dispatcher.view.acknowledge(partition, batch.seq, offset, now_ms)
        record = SnapshotBatch(
            v=1,
            partition=partition,
            as_of=offset,
            now_ms=now_ms,
            linger_ms=20,
            sequences={batch.incarnation: batch.seq},
            snapshots=[snapshot(state, now_ms) for state in changed.values()],
        )
        self._dispatcher.take_snapshots(offset, record)


async def serve(count: int, begin: Any = lambda: None, end: Any = lambda: None) -> float:
    """Serve so many requests, CLIENTS or more; returns the seconds they took, between `begin` and `end`."""
    loop = asyncio.get_running_loop()
    router = build(Settings.model_validate(_SETTINGS), {})
    for upstream in router.dispatcher.upstreams.values():
        upstream._idle_seconds = 3600.0  # nobody listens at their addresses
        for _ in range(CLIENTS):
            upstream.put_back(_engine(loop, upstream))
    config = uvicorn.Config(router.front, http=HttpProtocol, lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    server = uvicorn.Server(config)
    scorer = _Scorer(router.dispatcher)
    over: asyncio.Future[None] = loop.create_future()
    served = 0

    def client() -> HttpProtocol:
        def answered(data: bytes) -> None:
            nonlocal served
            assert data.startswith(b"HTTP/1.1 200 "), data
            served += 1
            if served % BATCH == 0:
                scorer.score()
            if served + CLIENTS <= count:  # the others are under way
                loop.call_soon(protocol.data_received, _REQUEST)
            elif served == count:
                over.set_result(None)

        protocol = HttpProtocol(config, server.server_state, {}, loop)
        protocol.connection_made(_Wire(answered))
        return protocol

    gc.collect()
    gc.freeze()
    begin()
    start_s = time.perf_counter()
    for _ in range(CLIENTS):
        loop.call_soon(client().data_received, _REQUEST)
    await over
    took_s = time.perf_counter() - start_s
    end()
    for upstream in router.dispatcher.upstreams.values():
        upstream.close()
    return took_s


def _engine(loop: asyncio.AbstractEventLoop, upstream: Any) -> Connection:
    connection = Connection(loop, upstream._forget)
    connection.connection_made(_Wire(lambda _: loop.call_soon(connection.data_received, PLAIN)))
    connection.complete = connection.reusable = True
    return connection


def count(requests: int) -> tuple[Counter[CodeType], Counter[CodeType]]:
    """Return the bytecodes and the calls of each function, in all so many requests."""
    codes: Counter[CodeType] = Counter()
    calls: Counter[CodeType] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            calls[frame.f_code] += 1
        elif event == "opcode":
            codes[frame.f_code] += 1
        return trace

    uvloop.run(serve(requests, lambda: sys.settrace(trace), lambda: sys.settrace(None)))
    return codes, calls


def instructions() -> float | None:
    """Return the instructions of a request by valgrind, None without one: what 800 requests more take."""

    def of(requests: int) -> int:
        command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
        command += [sys.executable, __file__, "--serve", str(requests)]
        environ = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
        found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
        assert found, done.stderr
        return int(found[1].replace(",", ""))

    try:
        return (of(1200) - of(400)) / 800
    except FileNotFoundError:
        return None


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description="A plain request's way through the router, counted")
    parser.add_argument("--lines", type=int, default=30, help="functions to print, those with the most bytecodes first")
    parser.add_argument("--instructions", action="store_true", help="count those too; needs valgrind, takes a minute")
    parser.add_argument("--serve", type=int, metavar="N", help="only serve so many requests, for a profiler of yours")
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve))
        return
    codes, calls = count(COUNTED)
    least_us = min(uvloop.run(serve(TIMED)) for _ in range(TRIES)) / TIMED * 1e6
    each, called = codes.total() / COUNTED, calls.total() / COUNTED
    print(f"a request: {each:,.0f} bytecodes in {called:.0f} calls, {least_us:.0f} us")
    if options.instructions:
        found = instructions()
        print("instructions: valgrind is not installed" if found is None else f"instructions: {found:,.0f}")
    for code, number in codes.most_common(options.lines):
        where = f"{code.co_qualname} ({Path(code.co_filename).name})"
        print(f"{number / COUNTED:7.1f} bytecodes {calls[code] / COUNTED:5.2f} calls  {where}")


if __name__ == "__main__":
    main()
