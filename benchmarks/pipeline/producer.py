"""A child process with real emitters, a snapshots reader and a router's view: `python producer.py JSON`.

It offers events at a rate, follows the advised linger as a router does, and measures for the events of the second part
of its run how long it took from `Emitter.add` until a snapshot that includes them had been taken in:

- `acked_ms`: Kafka had acknowledged its batch;
- `covered_ms`: a snapshots record of the partition that is true up to the event, or later, was taken in;
- `shown_ms`: the event's own instance came in such a record. The scorer publishes an instance at once when it changed
  meaningfully (scorer/changes.py) and else every 2 s, so this has two humps;
- `probe_ms`: the same for probes only, loads that differ tenfold from the one before: changes that must be shown.

It says `ready` when it is connected, starts at the first byte on standard input, and writes JSON to the file `result`.
"""

import asyncio
import json
import random
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.pipeline import traffic
from evenload.bus.emitter import Emitter, Placed
from evenload.bus.snapshots import SnapshotReader
from evenload.bus.topics import partition_for
from evenload.routing.log_clock import LogClock
from evenload.routing.view import FleetView
from evenload.schemas import Event, RouterLoad, SnapshotBatch
from evenload.settings.scoring import UNKNOWN

TICK_S = 0.004
SETTLE_S = 2.5  # after the end, for the heartbeats that show the last events
POOL = 4096  # events drawn beforehand
PROBE_INSTANCES = 8


class Waiting:
    """Events on their way to a snapshot.

    Attributes:
        acked_ms, covered_ms, shown_ms, probe_ms: delays so far.
    """

    def __init__(self, incarnations: list[int]) -> None:
        self.acked_ms: list[float] = []
        self.covered_ms: list[float] = []
        self.shown_ms: list[float] = []
        self.probe_ms: list[float] = []
        self._number = {incarnation: number for number, incarnation in enumerate(incarnations)}
        self._included: dict[int, list[int]] = {}  # partition -> last sequence included, by emitter
        self._uncovered: dict[tuple[int, int], deque[tuple[int, float]]] = {}
        self._unshown: dict[str, list[tuple[int, int, float, bool]]] = {}
        self._unacked: dict[tuple[int, int], deque[tuple[int, float]]] = {}

    def add(self, emitter: int, placed: Placed, instance: str, now_s: float, probe: bool) -> None:
        """Follow an event."""
        lane = (placed.partition, emitter)
        self._uncovered.setdefault(lane, deque()).append((placed.seq, now_s))
        self._unacked.setdefault(lane, deque()).append((placed.seq, now_s))
        self._unshown.setdefault(instance, []).append((emitter, placed.seq, now_s, probe))

    def ack(self, emitter: int, partition: int, seq: int, now_s: float) -> None:
        """Note that Kafka has a batch."""
        _pass(self._unacked.get((partition, emitter)), seq, now_s, self.acked_ms)

    def take(self, batch: SnapshotBatch, now_s: float) -> None:
        """Note what a record shows."""
        included = self._included.setdefault(batch.partition, [-1] * len(self._number))
        for incarnation, seq in batch.sequences.items():
            number = self._number.get(incarnation)
            if number is not None and seq > included[number]:
                included[number] = seq
                _pass(self._uncovered.get((batch.partition, number)), seq, now_s, self.covered_ms)
        for snapshot in batch.snapshots:
            self._show(snapshot.state.instance, included, now_s)

    def _show(self, instance: str, included: list[int], now_s: float) -> None:
        left: list[tuple[int, int, float, bool]] = []
        for item in self._unshown.get(instance, ()):
            emitter, seq, added_s, probe = item
            if seq > included[emitter]:
                left.append(item)
                continue
            (self.probe_ms if probe else self.shown_ms).append((now_s - added_s) * 1000)
        self._unshown[instance] = left


def _pass(waiting: deque[tuple[int, float]] | None, seq: int, now_s: float, delays_ms: list[float]) -> None:
    while waiting and waiting[0][0] <= seq:
        delays_ms.append((now_s - waiting.popleft()[1]) * 1000)


class Producer:
    """The emitters, one reader that advises all, and the view of the first of them."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        partitions, bootstrap, prefix = options["partitions"], options["bootstrap"], options["prefix"]
        self.names = traffic.instances(options["instances"])
        self.emitters = [
            Emitter(
                bootstrap,
                prefix,
                f"{options['name']}-{number}",
                partitions=partitions,
                on_ack=partial(self._acknowledge, number),
            )
            for number in range(options["emitters"])
        ]
        homes = {name: partition_for(name.encode(), partitions) for name in self.names}
        self.clock = LogClock(int(time.time() * 1000), time.monotonic() * 1000)
        self.view = FleetView(
            dict.fromkeys(self.names, UNKNOWN), homes, self.emitters[0].incarnation, int(time.time() * 1000)
        )
        self.waiting = Waiting([emitter.incarnation for emitter in self.emitters])
        self.reader = SnapshotReader(bootstrap, prefix, partitions, self._take)
        self.linger_ms: dict[int, int] = {}

    def _take(self, partition: int, offset: int, batch: SnapshotBatch) -> None:
        mono_s = time.monotonic()
        self.clock.anchor(batch.now_ms, mono_s * 1000)
        self.view.take(offset, batch, mono_s * 1000)
        for emitter in self.emitters:
            emitter.advise(partition, batch.linger_ms)
        self.linger_ms[partition] = batch.linger_ms
        self.waiting.take(batch, time.monotonic())

    def _acknowledge(self, number: int, partition: int, seq: int, offset: int, _timestamp_ms: int) -> None:
        self.waiting.ack(number, partition, seq, time.monotonic())
        if number == 0:
            self.view.acknowledge(partition, seq, offset)

    async def run(self) -> dict[str, Any]:
        """Do as the options say and return the figures."""
        for emitter in self.emitters:
            emitter.start()
        self.reader.start()
        await self._connect()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read, 1)
        await self._offer(self.options["warmup_s"], measured=False)
        sent, cpu_s = sum(emitter.sent_batches for emitter in self.emitters), time.process_time()
        events = await self._offer(self.options["measure_s"], measured=True)
        cpu_s = time.process_time() - cpu_s
        batches = sum(emitter.sent_batches for emitter in self.emitters) - sent
        await asyncio.sleep(self.options.get("settle_s", SETTLE_S))
        for emitter in self.emitters:
            await emitter.close()
        await self.reader.close()
        return {
            "events": events,
            "batches": batches,
            "cpu_s": cpu_s,
            "lost": sum(emitter.lost_events for emitter in self.emitters),
            "linger_ms": sum(self.linger_ms.values()) / max(1, len(self.linger_ms)),
            "acked_ms": [round(value, 1) for value in self.waiting.acked_ms],
            "covered_ms": [round(value, 1) for value in self.waiting.covered_ms],
            "shown_ms": [round(value, 1) for value in self.waiting.shown_ms],
            "probe_ms": [round(value, 1) for value in self.waiting.probe_ms],
        }

    async def _connect(self) -> None:
        """Wait for the topics' metadata and all connections, so that none of it falls into the run."""
        for number, emitter in enumerate(self.emitters):
            name = self.names[number % len(self.names)]
            emitter.add(traffic.draw(random.Random(number), name), self.clock.now_ms(time.monotonic() * 1000))
        for emitter in self.emitters:
            if not await emitter.flush(30.0):
                raise SystemExit("no connection to Kafka")
        while not self.reader.connected:  # noqa: ASYNC110 - the reader has no event for it, and this is the start
            await asyncio.sleep(0.01)

    async def _offer(self, seconds: float, *, measured: bool) -> int:
        """Add events evenly over so many seconds; late ones follow at once. Returns how many."""
        options, count = self.options, 0
        rng = random.Random(options["seed"])
        pool = [traffic.draw(rng, rng.choice(self.names)) for _ in range(POOL)]
        track_every, probe_every = options["track_every"], options.get("probe_every", 0)
        start_s = time.monotonic()
        while (now_s := time.monotonic()) < start_s + seconds:
            due = int((now_s - start_s) * options["rate"])
            while count < due:
                probe = measured and probe_every > 0 and count % probe_every == 0
                event = self._probe(count // probe_every) if probe else pool[count % POOL]
                self._add(count % len(self.emitters), event, measured and (probe or count % track_every == 0), probe)
                count += 1
            await asyncio.sleep(TICK_S)
        return count

    def _probe(self, number: int) -> RouterLoad:
        name = self.names[number % min(PROBE_INSTANCES, len(self.names))]
        busy = 30 if number // PROBE_INSTANCES % 2 else 300
        return RouterLoad(instance=name, in_flight=busy, in_flight_tokens=900 * busy)

    def _add(self, number: int, event: Event, tracked: bool, probe: bool) -> None:
        now_s = time.monotonic()
        placed = self.emitters[number].add(event, self.clock.now_ms(now_s * 1000))
        if placed is None:
            return
        if tracked:
            self.waiting.add(number, placed, event.instance, now_s, probe)
        if number == 0:
            self.view.observe(event, placed.seq, placed.at_ms)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    Path(arguments["result"]).write_text(json.dumps(uvloop.run(Producer(arguments).run())))
