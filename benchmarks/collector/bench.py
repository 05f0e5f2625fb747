"""CPU of one collector that polls many instances whose pages have a real vLLM's size. README.md says how to read it.

`python benchmarks/collector/bench.py [--instances 200] [--poll-ms 250] [--seconds 8] [--loop asyncio|uvloop] [--json]`
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.pipeline import machine
from evenload.collector.engines.vllm import parse
from evenload.collector.poller import Poller
from evenload.collector.watch import Watch
from evenload.demo.engine_metrics import EngineMetrics
from evenload.schemas import Event
from evenload.sim.sequence import Gauges

PAGE_BYTES = 58_384  # of vLLM 0.32 that has served some requests
WARM_UP_S = 2.0
HOST = "127.0.0.1"


def page() -> bytes:
    """A page of a simulated engine, brought to a real one's size with lines of its HTTP histogram."""
    metrics = EngineMetrics("model", 1_795_984_982.94, 4096)
    for value in (0.05, 0.3, 1.2):
        metrics.ttft_s.observe(value)
    gauges = Gauges(8, 15, 0.4, 0, 0, 0, 818, 4, 900, 700, steps=120, busy_ms=0.0)
    text = metrics.render(gauges, held=0, cpu_s=41.5).encode()
    line = b'http_request_duration_highr_seconds_bucket{handler="/v1/chat/completions",le="%d"} 19.0\n'
    while len(text) < PAGE_BYTES:
        text += line % len(text)
    return text[: text.rindex(b"\n", 0, PAGE_BYTES + 1) + 1]


def serve(answers: Connection) -> None:
    """Answer every GET with the page, until killed; its CPU is not the collector's."""
    body = page()
    metrics = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    other = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"

    class Engine(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(metrics if data.startswith(b"GET /metrics") else other)

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Engine, HOST, 0, backlog=1024)
        answers.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def poll(port: int, instances: int, poll_ms: int, seconds: float) -> dict[str, float]:
    """Poll and return what it cost."""
    events: list[Event] = []
    lateness: list[float] = []
    pollers = [
        Poller(Watch(f"gpu-{n}", poll_ms), f"http://{HOST}:{port}", 1.0, events.append) for n in range(instances)
    ]
    tasks = [asyncio.create_task(poller.run(n / instances * poll_ms / 1000)) for n, poller in enumerate(pollers)]
    await asyncio.sleep(WARM_UP_S)
    polls, begun_s, cpu_s = sum(p.polls for p in pollers), time.monotonic(), time.process_time()
    events.clear()
    while time.monotonic() - begun_s < seconds:
        due_s = time.monotonic() + 0.1
        await asyncio.sleep(0.1)
        lateness.append(time.monotonic() - due_s)
    wall_s, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
    polls = sum(p.polls for p in pollers) - polls
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return {
        "cores": round(cpu_s / wall_s, 3),
        "us_per_poll": round(cpu_s / polls * 1e6, 1),
        "polls_per_s": round(polls / wall_s, 1),
        "wanted_per_s": round(instances * 1000 / poll_ms, 1),
        "failed": sum(p.failed for p in pollers),
        "events_per_s": round(len(events) / wall_s, 1),
        "loop_late_ms_p50": round(statistics.median(lateness) * 1000, 1),
        "loop_late_ms_max": round(max(lateness) * 1000, 1),
        "rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000, 1),
    }


def parse_us(times: int = 300) -> float:
    """CPU of reading one page."""
    text, begun_s = page(), time.process_time()
    for _ in range(times):
        parse(text)
    return round((time.process_time() - begun_s) / times * 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--poll-ms", type=int, default=250)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    server.start()
    there.close()  # so that the end of the server is the end of the pipe
    try:
        work = poll(here.recv(), asked.instances, asked.poll_ms, asked.seconds)
        found = {"parse_us": parse_us(), **_runner(asked.loop)(work), "load": machine.load()}
    finally:
        server.terminate()
        server.join()
    print(json.dumps(found) if asked.json else "\n".join(f"{name:18} {value}" for name, value in found.items()))


def _runner(loop: str) -> Callable[[Any], Any]:
    if loop == "asyncio":
        return asyncio.run
    import uvloop

    return uvloop.run


if __name__ == "__main__":
    main()
