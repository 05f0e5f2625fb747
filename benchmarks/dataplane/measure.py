"""What is measured of a proxy, each figure in one short window: CPU from the operating system, the rest from the load.

CPU figures count the proxy's process with all its threads, background work included: for Evenload that is Kafka's
client, snapshots, metrics and ticker.
"""

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable

from benchmarks.dataplane.engine import Engine
from benchmarks.dataplane.load import Load, Seen
from benchmarks.dataplane.proxies import Proxy
from benchmarks.pipeline.machine import Others, quantile

CLIENTS = 64
WINDOW_S = 4.0
FRAMES = 200
FRAME_S = 0.02
STREAMS = 100
RATE = 100.0
SHORT_FRAMES = 4
SLOW = 20  # a slow proxy gets a twentieth of the load
IDLE_STREAMS = 500
MANY_STREAMS = 2000
MANY_FRAMES = 20
MANY_FRAME_S = 0.5

Row = dict[str, float]
Measure = Callable[[Proxy, Engine], Awaitable[Row]]


async def requests(proxy: Proxy, _engine: Engine) -> Row:
    """Plain requests in a closed loop of 64 clients."""
    async with Load(proxy.url) as load:
        await load.closed(8, 0.5)
        return await _with_cpu(proxy, lambda: load.closed(CLIENTS, WINDOW_S), _per_request)


async def chunks(proxy: Proxy, engine: Engine) -> Row:
    """100 streams of 50 frames per second each."""
    engine.interval_s = FRAME_S
    count = STREAMS // SLOW if proxy.slow else STREAMS
    async with Load(proxy.url) as load:
        await load.streams(4, 10, 0.1)
        return await _with_cpu(proxy, lambda: load.streams(count, FRAMES, 0.5), _per_chunk)


async def latency(proxy: Proxy, _engine: Engine) -> Row:
    """Plain requests at 100 per second, Poisson arrivals (5 for a slow proxy)."""
    rate = RATE / SLOW if proxy.slow else RATE
    async with Load(proxy.url) as load:
        await load.closed(4, 0.3)
        return await _with_cpu(proxy, lambda: load.arriving(rate, WINDOW_S, random.Random(1)), _delays)


async def first(proxy: Proxy, engine: Engine) -> Row:
    """Short streams, one begun every 10 ms: how long until their first content."""
    engine.interval_s = FRAME_S
    rate = RATE / SLOW if proxy.slow else RATE
    async with Load(proxy.url) as load:
        await load.streams(4, SHORT_FRAMES, 0.3)
        return await _with_cpu(proxy, lambda: load.streams(round(rate * WINDOW_S), SHORT_FRAMES, WINDOW_S), _firsts)


async def idle(proxy: Proxy, engine: Engine) -> Row:
    """Memory of streams that have begun and say nothing; the pages of the proxy's own sockets are the kernel's."""
    count = IDLE_STREAMS // SLOW if proxy.slow else IDLE_STREAMS
    async with Load(proxy.url) as load:
        engine.interval_s = FRAME_S
        await load.streams(count, 4, 1.0)  # what a proxy keeps for good, it has now
        before = proxy.rss_mb()
        engine.interval_s = 8.0
        running = asyncio.ensure_future(load.streams(count, 2, 1.0))
        await asyncio.sleep(4.0)
        opened, during = engine.streams, proxy.rss_mb()
        seen = await running
    return {"streams": opened, "kb_per_stream": (during - before) * 1e3 / max(1, opened), "errors": _errors(seen)}


async def many(proxy: Proxy, engine: Engine) -> Row:
    """2,000 streams at once, 2 frames per second each."""
    engine.interval_s = MANY_FRAME_S
    count = MANY_STREAMS // SLOW if proxy.slow else MANY_STREAMS
    async with Load(proxy.url) as load:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, engine.streams)
                await asyncio.sleep(0.1)

        watching = asyncio.ensure_future(watch())
        row = await _with_cpu(proxy, lambda: load.streams(count, MANY_FRAMES, 5.0), _per_chunk)
        watching.cancel()
    return {**row, "at_once": most, "rss_mb": proxy.rss_mb()}


async def _with_cpu(proxy: Proxy, run: Callable[[], Awaitable[Seen]], figures: Callable[[Seen, float], Row]) -> Row:
    others, (user, system) = Others(), proxy.cpu()
    seen = await run()
    user_after, system_after = proxy.cpu()
    cpu_s = user_after + system_after - user - system
    row = figures(seen, cpu_s)
    if cpu_s:
        row["system_share"] = (system_after - system) / cpu_s
    return {**row, "cores": cpu_s / seen.seconds, "errors": _errors(seen), "others_cores": others.cores()}


def _per_request(seen: Seen, cpu_s: float) -> Row:
    return {"cpu_us": 1e6 * cpu_s / max(1, seen.done), "per_s": seen.done / seen.seconds}


def _per_chunk(seen: Seen, cpu_s: float) -> Row:
    frames = max(1, seen.frames)
    return {
        "cpu_s_per_million": 1e6 * cpu_s / frames,
        "per_s": seen.frames / seen.seconds,
        "ttft_p99_ms": 1e3 * quantile(seen.ttfts_s, 0.99),
    }


def _delays(seen: Seen, cpu_s: float) -> Row:
    return _quantiles(seen.latencies_s, seen, cpu_s)


def _firsts(seen: Seen, cpu_s: float) -> Row:
    return _quantiles(seen.ttfts_s, seen, cpu_s)


def _quantiles(seconds: list[float], seen: Seen, cpu_s: float) -> Row:
    values = seconds or [float("nan")]
    return {
        "p50_ms": 1e3 * statistics.median(values),
        "p99_ms": 1e3 * quantile(values, 0.99),
        "cpu_us": 1e6 * cpu_s / max(1, seen.done),
    }


def _errors(seen: Seen) -> float:
    for what, count in sorted(seen.errors.items())[:3]:
        print(f"    {count} x {what}")
    return float(sum(seen.errors.values()))
