"""CPU microseconds per event that an emitter costs its process: `python emitter_cpu.py JSON` is the child process.

`add_us` is the call on the hot path. `all_us` has the sending too: windows with events minus windows of the same loop
without, so that neither the loop nor the pacing counts; what aiokafka does per record is shared by the events of the
record, so it falls with the rate.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.pipeline import machine, traffic
from benchmarks.pipeline.stack import PARTITIONS, Kafka, case
from evenload.bus.emitter import Emitter

TICK_S = 0.002
INSTANCES = 64
ADDS = 20_000
RATES = (500, 2_000, 10_000)


def measure(
    where: Kafka,
    rounds: int,
    rates: tuple[int, ...] = RATES,
    linger_ms: tuple[int, ...] = (20, 100),
    seconds: float = 2.0,
) -> dict[str, dict[str, float]]:
    """By rate and linger: CPU microseconds per event."""
    rows: dict[str, list[dict[str, float]]] = {}
    with case(where) as owner:
        for linger in linger_ms:
            options = {
                "bootstrap": where.bootstrap,
                "prefix": owner.prefix,
                "rounds": rounds,
                "rates": rates,
                "linger_ms": linger,
                "seconds": seconds,
            }
            machine.wait_until_quiet()
            output = subprocess.run(
                [sys.executable, __file__, json.dumps(options)], check=True, stdout=subprocess.PIPE, timeout=120.0
            ).stdout
            for name, found in json.loads(output).items():
                rows.setdefault(f"{name}, linger {linger} ms", []).extend(found)
    return {name: machine.middle(found) for name, found in rows.items()}


async def _child(options: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    rng = random.Random(1)
    events = [traffic.draw(rng, rng.choice(traffic.instances(INSTANCES))) for _ in range(ADDS)]
    rows: dict[str, list[dict[str, float]]] = {}
    async with Emitter(
        options["bootstrap"], options["prefix"], "router", partitions=PARTITIONS, linger_ms_min=options["linger_ms"]
    ) as emitter:
        for partition in range(PARTITIONS):
            emitter.advise(partition, options["linger_ms"])
        emitter.add(events[0], 0)
        await emitter.flush(30.0)
        for _ in range(options["rounds"]):
            for rate in options["rates"]:
                rows.setdefault(f"{rate}/s", []).append(await _all_us(emitter, events, rate, options["seconds"]))
            add_us = _add_us(emitter, events)
            await emitter.flush(30.0)
            for found in rows.values():
                found[-1]["add_us"] = add_us
    return rows


def _add_us(emitter: Emitter, events: list[Any]) -> float:
    now_ms = int(time.time() * 1000)
    start_s = time.process_time()
    for number, event in enumerate(events):
        emitter.add(event, now_ms + number // 10)
    return (time.process_time() - start_s) / len(events) * 1e6


async def _all_us(emitter: Emitter, events: list[Any], rate: int, seconds: float) -> dict[str, float]:
    sent, others = emitter.sent_batches, machine.Others()
    bare_s = await _window(None, events, rate, seconds)
    full_s = await _window(emitter, events, rate, seconds)
    batches = emitter.sent_batches - sent
    return {
        "all_us": (full_s - bare_s) / (rate * seconds) * 1e6,
        "events_per_record": rate * seconds / max(1, batches),
        "per_record_us": (full_s - bare_s) / max(1, batches) * 1e6,
        "others_cores": others.cores(),
    }


async def _window(emitter: Emitter | None, events: list[Any], rate: int, seconds: float) -> float:
    """CPU seconds of so many seconds of events; none are added without an emitter."""
    cpu_s, start_s, count = time.process_time(), time.monotonic(), 0
    while (passed_s := time.monotonic() - start_s) < seconds:
        while count < int(passed_s * rate):
            if emitter is not None:
                emitter.add(events[count % ADDS], int(start_s * 1000 + passed_s * 1000))
            count += 1
        await asyncio.sleep(TICK_S)
    if emitter is not None:
        await emitter.flush(30.0)
    return time.process_time() - cpu_s


if __name__ == "__main__":
    print(json.dumps(uvloop.run(_child(json.loads(sys.argv[1])))))
