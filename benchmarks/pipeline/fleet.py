"""What the number of instances costs: scorer memory, recovery time, a router's cold start."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.pipeline import machine, traffic
from benchmarks.pipeline.flow import drain
from benchmarks.pipeline.stack import PARTITIONS, Case, Kafka, Worker, case, get, wait_for
from evenload.broker import ports
from evenload.bus.snapshots import SnapshotReader
from evenload.bus.topics import partition_for
from evenload.routing.view import FleetView
from evenload.schemas import SnapshotBatch, decode_snapshots, encode
from evenload.settings.scoring import UNKNOWN

SIZES = (64, 1_000, 4_000)
EVENTS_PER_INSTANCE = 12
COMPLETE_S_MAX = 60.0
REPEATS = 5


def measure(
    where: Kafka, rounds: int, sizes: tuple[int, ...] = SIZES, session_timeout_s: int = 6
) -> dict[str, dict[str, float]]:
    """By number of instances: RSS in MB, seconds of recovery and cold start.

    `restart_s`: from the start of the process to its first snapshots, after SIGTERM; `kill_restart_s`: after kill -9,
    when the group notices by its session timeout only; `view_s`: reader and view in this process, from nothing to a
    snapshot of every instance; `router_s`: the same for a router process, from its start, imports and all; `take_us`:
    CPU per snapshot that a router decodes and takes into its view.
    """
    found: dict[str, dict[str, float]] = {}
    for size in sizes:
        with case(where) as owner, owner.worker(session_timeout_s=session_timeout_s) as worker:
            worker.wait_ready()
            _feed(owner, worker, size)
            machine.wait_until_quiet()
            others, row = machine.Others(), {"rss_mb": machine.rss_mb(worker.pid)}
            row["restart_s"] = _restart_s(worker, worker.end)
            row["kill_restart_s"] = _restart_s(worker, worker.kill)
            row |= machine.middle([_cold_start(owner, size) for _ in range(rounds)])
            row["others_cores"] = others.cores()
            found[f"{size} instances"] = row
    return found


def _feed(owner: Case, worker: Worker, size: int) -> None:
    """Tell the scorer of so many instances, each by 8 producers, and wait for its checkpoint."""
    events = size * EVENTS_PER_INSTANCE
    drain(owner, [worker], traffic.backlog(traffic.instances(size), PARTITIONS, events, 50), events)
    wait_for(lambda: worker.metrics().get("instances", 0) >= size * 0.99, "instances known")
    wait_for(lambda: (now := worker.metrics())["durable"] == now["position"], "checkpoint written")


def _restart_s(worker: Worker, end: Callable[[], None]) -> float:
    end()
    start_s = time.monotonic()
    worker.start()
    worker.wait_ready()
    wait_for(lambda: worker.metrics().get("snapshots_total", 0) > 0, "first snapshots")
    return time.monotonic() - start_s


def _cold_start(owner: Case, size: int) -> dict[str, float]:
    view_s, take_us = asyncio.run(_view(owner, size))
    return {"view_s": view_s, "take_us": take_us, "router_s": _router_s(owner, size)}


async def _view(owner: Case, size: int) -> tuple[float, float]:
    """Seconds until the view is complete, and CPU microseconds per snapshot that it takes in."""
    names = traffic.instances(size)
    homes = {name: partition_for(name.encode(), PARTITIONS) for name in names}
    missing, complete = set(names), asyncio.Event()
    seen: list[tuple[int, bytes, int]] = []
    start_s = time.monotonic()
    view = FleetView(dict.fromkeys(names, UNKNOWN), homes, 1, int(time.time() * 1000))

    def take(_partition: int, offset: int, batch: SnapshotBatch) -> None:
        view.take(offset, batch, time.monotonic() * 1000)
        seen.append((offset, encode(batch), len(batch.snapshots)))
        missing.difference_update(item.state.instance for item in batch.snapshots)
        if not missing:
            complete.set()

    async with SnapshotReader(owner.kafka.bootstrap, owner.prefix, PARTITIONS, take):
        async with asyncio.timeout(COMPLETE_S_MAX):
            await complete.wait()
        view_s = time.monotonic() - start_s
    cpu_s = time.process_time()
    for _ in range(REPEATS):
        for offset, data, _ in seen:
            view.take(offset, decode_snapshots(data), 0.0)
    return view_s, (time.process_time() - cpu_s) / REPEATS / sum(count for _, _, count in seen) * 1e6


def _router_s(owner: Case, size: int) -> float:
    port = ports.choose_free("127.0.0.1")
    config = owner.kafka.folder / f"router-{port}.yaml"
    listed = [{"id": name, "url": "http://127.0.0.1:1"} for name in traffic.instances(size)]
    settings = {
        "kafka": {"bootstrap": owner.kafka.bootstrap, "topic_prefix": owner.prefix, "partitions": PARTITIONS},
        "pools": [{"name": "p", "models": ["m"], "instances": listed}],
        "router": {"port": port},
    }
    config.write_text(json.dumps(settings))  # JSON is YAML
    start_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "evenload.cli.app", "router", "--config", str(config)],
        env=os.environ | {"EVENLOAD_CONFIG": str(config)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: _complete(port, size), "router complete", COMPLETE_S_MAX)
        return time.monotonic() - start_s
    finally:
        process.kill()
        process.wait()


def _complete(port: int, size: int) -> bool:
    page = get(port, "/fleet")
    if not page:
        return False
    listed = json.loads(page)["pools"][0]["instances"]
    return len(listed) == size and all(one["snapshot_age_ms"] is not None for one in listed)
