"""Kafka is away under load, a router is restarted and a collector killed meanwhile: nothing that was observed is lost.

SPOOL_OUTAGE_S and SPOOL_EVENTS_PER_S set how long and how much; docs/operations.md has figures of 120 s and 2,000/s.
"""

import asyncio
import itertools
import json
import os
import re
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import quantiles

import msgspec
import pytest

from evenload.broker import Broker
from evenload.bus.log_reader import LogRecord, read_log
from evenload.bus.topics import ensure_topics, partition_for, specs, topic_names
from evenload.cli.local import service, write_settings
from evenload.cli.supervise import Child
from evenload.router.upstream import UpstreamError
from evenload.schemas import Batch, Membership, Outcome, decode_batch, encode
from evenload.scorer.core import Options, PartitionScorer
from evenload.scoring import DEFAULT
from evenload.settings import Settings
from tests.bus.scripted import sequences
from tests.e2e import fleet, observing_router
from tests.e2e.replica import Replica

DOWN_S = float(os.environ.get("SPOOL_OUTAGE_S", "15"))
EVENTS_PER_S = float(os.environ.get("SPOOL_EVENTS_PER_S", "400"))
ROUTERS = 2
CLIENTS = 6
PAUSE_S = 0.15
WARM_S = 6.0
PARTITIONS = 4
TRUE_AGE_MS = 2_000  # clocks of the broker and of producers are one here; a record may wait that long in a busy machine
ATTEMPT_MS = 10_000  # of the producer: what it resends within that keeps its age

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.timeout(240 + 4 * DOWN_S)]


@dataclass
class Clients:
    """People who ask all the time; what they saw, by phase."""

    replicas: list[Replica]
    phase: str = "before"
    answered: list[str] = field(default_factory=list)
    bad: Counter[str] = field(default_factory=Counter)
    took_ms: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    async def ask(self, turns: Iterator[int]) -> None:
        """One answer after the other, through whichever routers are ready; nothing is tried twice."""
        body = json.dumps(
            {"model": fleet.MODEL, "stream": True, "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
        ).encode()
        while True:
            turn = next(turns)
            ready = [replica for replica in self.replicas if replica.ready]
            name = f"client-{turn}"
            headers = [(b"content-type", b"application/json"), (b"x-request-id", name.encode())]
            phase, begun_s = self.phase, time.perf_counter()
            try:
                answer = await ready[turn % len(ready)].client.request("POST", b"/v1/chat/completions", headers, body)
                try:
                    text = await answer.read_all(100_000)
                finally:
                    answer.release()
                if answer.status == 200 and b"[DONE]" in text and b'"error"' not in text:
                    self.answered.append(name)
                    self.took_ms[phase].append((time.perf_counter() - begun_s) * 1000)
                else:
                    self.bad[f"{answer.status} {text[:200]!r}"] += 1
            except (UpstreamError, ZeroDivisionError) as error:
                self.bad[repr(error)] += 1
            await asyncio.sleep(PAUSE_S)

    def percentiles(self, phase: str) -> tuple[float, float, float]:
        """50th, 95th and 99th of a phase, in ms."""
        cuts = quantiles(self.took_ms[phase], n=100, method="inclusive")
        return cuts[49], cuts[94], cuts[98]


class Process:
    """A router that observes, or a collector; its lives one after the other."""

    def __init__(self, name: str, settings: Settings, folder: Path) -> None:
        file = write_settings(settings, folder / f"{name}.yaml")
        command = name.partition("-")[0]
        self.spec = service(name, command, settings, file)
        if command == "router":
            script = Path(observing_router.__file__)
            argv = [sys.executable, str(script), str(file), str(EVENTS_PER_S / ROUTERS)]
            self.spec = replace(self.spec, argv=argv)
        self.lines: list[str] = []

    def start(self) -> None:
        """Begin a life."""
        self.child = Child(self.spec, emit=lambda _, line: self.lines.append(line))
        self.child.start()

    def observed(self) -> list[tuple[int, int]]:
        """Incarnation and number of extra events, of each life that has ended."""
        text = "\n".join(self.lines)
        incarnations = [int(found, 16) for found in re.findall(r"incarnation ([0-9a-f]+)", text)]
        counts = [int(found) for found in re.findall(r"observed (\d+)", text)]
        return list(zip(incarnations, counts, strict=True))


def page(port: int) -> dict[str, float]:
    """The metrics of a process, by series."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return {series: float(value) for series, value in (x.rsplit(" ", 1) for x in lines if x and x[0] != "#")}


def waiting(ports: list[int]) -> float:
    """Events on disk, of all processes."""
    return sum(page(port)["evenload_spool_events"] for port in ports)


async def restart(process: Process, replica: Replica) -> None:
    """SIGTERM, the end, and a new life."""
    await asyncio.to_thread(process.child.stop)
    await asyncio.to_thread(process.start)
    async with asyncio.timeout(60):
        while not replica.ready:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def outage(broker: Broker, processes: dict[str, Process], clients: Clients) -> tuple[float, float, float]:
    """Kafka away, and back; returns for how long, the seconds until the disks were empty, and what was on them."""
    ports = [replica.settings.router.port for replica in clients.replicas]
    ports.append(clients.replicas[0].settings.collector.metrics_port)
    await asyncio.sleep(WARM_S)
    await asyncio.to_thread(broker.kill)
    away_s = time.monotonic()
    clients.phase = "away"
    await asyncio.sleep(DOWN_S / 2)
    await restart(processes["router-0"], clients.replicas[0])
    processes["collector"].child.kill()  # its keeper starts it again
    await asyncio.sleep(DOWN_S / 2)
    clients.phase = "back"
    stored = await asyncio.to_thread(waiting, ports)
    await asyncio.to_thread(broker.start)
    back_s = time.monotonic()
    async with asyncio.timeout(60 + DOWN_S):
        while await asyncio.to_thread(waiting, ports):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    empty_s = time.monotonic()
    for port in ports[:ROUTERS]:
        figures = await asyncio.to_thread(page, port)
        assert {k: v for k, v in figures.items() if k.startswith("evenload_telemetry_lost") and v} == {}
    clients.phase = "after"
    await asyncio.sleep(WARM_S)
    return back_s - away_s, empty_s - back_s, stored


async def test_what_is_observed_while_kafka_is_away_is_in_the_log_once_and_in_order_and_clients_notice_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = fleet.engines(2)
    await engines.start()
    tasks: list[asyncio.Task[None]] = []
    try:
        with Broker(tmp_path / "kafka") as broker:
            await ensure_topics(broker.bootstrap, specs("t"))
            every = [
                fleet.settings_for(engines, broker.bootstrap, "t", spool=tmp_path / "spool", announce_s=1)
                for _ in range(ROUTERS)
            ]
            clients = Clients([Replica(settings) for settings in every])
            processes = {f"router-{n}": Process(f"router-{n}", settings, tmp_path) for n, settings in enumerate(every)}
            processes["collector"] = Process("collector", every[0], tmp_path)
            try:
                for one in processes.values():
                    await asyncio.to_thread(one.start)
                tasks += [asyncio.create_task(replica.poll()) for replica in clients.replicas]
                async with asyncio.timeout(60):
                    while not all(replica.ready for replica in clients.replicas):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                turns = itertools.count()
                asking = [asyncio.create_task(clients.ask(turns)) for _ in range(CLIENTS)]
                tasks += asking
                away_s, took_s, stored = await outage(broker, processes, clients)
                assert not any(task.done() for task in tasks)
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
            finally:
                for one in processes.values():
                    await asyncio.to_thread(one.child.stop)
            read = [
                (r, decode_batch(r.value or b"")) async for r in read_log(broker.bootstrap, topic_names("t").telemetry)
            ]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in clients.replicas:
            replica.client.close()
        await engines.stop()
    lives = [life for one in processes.values() if one.spec.name != "collector" for life in one.observed()]
    with capsys.disabled():
        late = sum(batch.age_ms > DEFAULT.aged_ms for _, batch in read)
        once = len({(record.partition, batch.incarnation, batch.seq) for record, batch in read})
        print(
            f"\nKafka away for {away_s:.0f} s, {sum(n for _, n in lives)} events observed at {EVENTS_PER_S:.0f}/s "
            f"beside those of {len(clients.answered)} answers; {stored:.0f} on disk when it was started, none "
            f"{took_s:.1f} s after it answered; {len(read)} records, {late} older than 10 s, "
            f"{len(read) - once} repeated"
        )
        for phase in clients.took_ms:
            p50, p95, p99 = clients.percentiles(phase)
            print(f"  {phase}: {len(clients.took_ms[phase])} answers, p50 {p50:.1f} ms, p95 {p95:.1f}, p99 {p99:.1f}")
    assert clients.bad == {}
    assert_unchanged(clients)
    assert_complete(read, lives, clients.answered)
    assert_true_ages(read)
    assert_aged_only_count(read)


def assert_unchanged(clients: Clients) -> None:
    """Latency while Kafka is away is that of before; the allowance is what two busy cores do to 95th percentiles."""
    before, away = clients.percentiles("before"), clients.percentiles("away")
    assert away[0] <= 1.5 * before[0] + 10
    assert away[1] <= 2.0 * before[1] + 50


def assert_complete(read: list[tuple[LogRecord, Batch]], lives: list[tuple[int, int]], answered: list[str]) -> None:
    """Every sequence is whole, and holds exactly what was observed, in that order."""
    log: dict[int, list[Batch]] = defaultdict(list)
    for record, batch in read:
        log[record.partition].append(batch)
    whole = sequences(log)
    assert len(lives) == ROUTERS + 1
    for incarnation, observed in lives:
        assert observed > 0
        for partition in range(PARTITIONS):
            got = [
                event.request_id
                for batch in whole.get((incarnation, partition), ())
                for event in batch.events
                if event.instance.startswith("load-") and isinstance(event, Outcome)
            ]
            wanted = [observing_router.event(number) for number in range(observed)]
            assert got == [e.request_id for e in wanted if partition_for(e.instance.encode(), PARTITIONS) == partition]
    ends = Counter(
        event.request_id
        for batches in whole.values()
        for batch in batches
        for event in batch.events
        if isinstance(event, Outcome) and event.request_id.startswith("client-")
    )
    assert set(ends.values()) == {1}
    assert set(answered) <= set(ends)  # a request that was cut off at the end of the test has an outcome, too


def assert_true_ages(read: list[tuple[LogRecord, Batch]]) -> None:
    """Also of what a process left that was no more when it was sent."""
    for record, batch in read:
        if any(event.instance.startswith("load-") for event in batch.events[:1]):
            age_ms = record.timestamp_ms - batch.view_ms
            assert -TRUE_AGE_MS < age_ms - batch.age_ms < TRUE_AGE_MS + ATTEMPT_MS


def assert_aged_only_count(read: list[tuple[LogRecord, Batch]]) -> None:
    """The scorer's fold gives the same without the events that were too old, but for their number."""
    aged: Counter[str] = Counter()
    seen: set[tuple[int, int, int]] = set()
    fresh_only: list[tuple[LogRecord, Batch]] = []
    for record, batch in read:
        old = [
            event
            for event in batch.events
            if batch.age_ms - event.at > DEFAULT.aged_ms and not isinstance(event, Membership)
        ]
        fresh_only.append((record, msgspec.structs.replace(batch, events=[e for e in batch.events if e not in old])))
        if (record.partition, batch.incarnation, batch.seq) not in seen:
            aged.update(event.instance for event in old)
        seen.add((record.partition, batch.incarnation, batch.seq))
    if DEFAULT.aged_ms / 1000 < DOWN_S:
        assert aged.total() > 0
    states, without = folded(read), folded(fresh_only)
    assert states.keys() == without.keys()
    for name, state in states.items():
        assert state["aged"] == aged[name]
        assert without[name]["aged"] == 0
        for key in ("aged", "as_of", "watermarks"):
            del state[key], without[name][key]
        assert state == without[name]


def folded(read: list[tuple[LogRecord, Batch]]) -> dict[str, dict[str, object]]:
    """States by instance, as the scorer would have them."""
    parts = [PartitionScorer(number, Options(), lambda _: DEFAULT) for number in range(PARTITIONS)]
    for record, batch in read:
        letter = parts[record.partition].on_record(record.offset, record.timestamp_ms, encode(batch), 0.0)
        assert letter is None
    return {name: msgspec.structs.asdict(state) for part in parts for name, state in part.states.items()}
