"""Memory, disk, Kafka: in order, once, and within bounds, without a Kafka but with real files."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from evenload.bus.emitter import Emitter, Placed
from evenload.bus.spool_metrics import SpoolMetrics
from evenload.schemas import Batch, FirstToken
from evenload.settings import SpoolSettings
from tests.bus.scripted import ScriptedLink, sequences

PARTITIONS = 4
ROOT = Path(__file__).parents[2]


def emitter(
    folder: Path,
    link: ScriptedLink,
    *,
    buffer_events_max: int = 100_000,
    on_ack: Callable[[int, int, int, int], None] | None = None,
    **spool: Any,
) -> Emitter:
    return Emitter(
        "127.0.0.1:1",
        "t",
        "router-1",
        partitions=PARTITIONS,
        buffer_events_max=buffer_events_max,
        on_ack=on_ack,
        link=link,  # type: ignore[arg-type]
        spool=SpoolSettings.model_validate({"dir": folder, "after_ms": 100, **spool}),
    )


def spoil_one_batch(folder: Path) -> None:
    bad = min(folder.glob("*/*/*/*.segment"))
    data = bytearray(bad.read_bytes())
    data[-1] ^= 1
    bad.write_bytes(data)


async def test_what_has_gone_bad_before_a_start_is_in_the_metric_that_operators_watch(tmp_path: Path) -> None:
    async with emitter(tmp_path, ScriptedLink()) as one:
        Load().add(one, 60)
        await until(lambda: one.buffered == 0)
    spoil_one_batch(tmp_path)
    async with emitter(tmp_path, ScriptedLink()) as again:
        await until(lambda: metrics(again)["evenload_spool_up"] == 1)
        page = metrics(again)
        lost = page['evenload_telemetry_lost_events_total{reason="unreadable"}']
        assert lost == again.lost_events > 0
        assert page["evenload_spool_events"] == 60 - lost
        assert page["evenload_spool_damaged_segments_total"] == 1


class Load:
    """Observes events, and knows what was observed."""

    def __init__(self) -> None:
        self.number = 0
        self.observed: dict[tuple[int, int], list[float]] = defaultdict(list)

    def add(self, one: Emitter, count: int = 1) -> Placed | None:
        placed = None
        for _ in range(count):
            self.number += 1
            placed = one.add(FirstToken(instance=f"gpu-{self.number % 7}", ttft_ms=float(self.number)), 0)
            if placed is not None:
                self.observed[one.incarnation, placed.partition].append(float(self.number))
        return placed


def told(log: dict[int, list[Batch]]) -> dict[tuple[int, int], list[float]]:
    """The same, by the log."""
    return {
        key: [event.ttft_ms for batch in batches for event in batch.events if isinstance(event, FirstToken)]
        for key, batches in sequences(log).items()
    }


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def on_disk(one: Emitter) -> int:
    assert one.overflow is not None
    return one.overflow.folder.figures.events


async def test_what_kafka_does_not_take_goes_to_disk_and_from_there_in_order_to_kafka(tmp_path: Path) -> None:
    link, load = ScriptedLink(), Load()
    acked: list[tuple[int, int, int, int]] = []
    async with emitter(tmp_path, link, on_ack=lambda *ack: acked.append(ack)) as one:
        for _ in range(3):
            load.add(one, 500)
            await until(lambda: one.buffered == 0)
        assert on_disk(one) == 1_500
        assert one.oldest_age_ms > 100
        load.add(one, 100)  # newer ones in memory
        link.up.set()
        assert await one.flush()
        await until(lambda: on_disk(one) == 0)
        assert (one.buffered, one.lost_events, one.sent_events) == (0, 0, 1_600)
        assert one.oldest_age_ms == 0
    assert told(link.log) == load.observed
    assert {(p, seq): offset for p, seq, offset, _ in acked} == {
        (p, batch.seq): offset for p, batches in link.log.items() for offset, batch in enumerate(batches)
    }
    assert [batch.age_ms > 100 for batch in link.log[0]][:1] == [True]
    assert one.overflow is not None
    assert one.overflow.folder.figures.bytes == 0


def metrics(one: Emitter) -> dict[str, float]:
    """The metrics page, by series."""
    registry = CollectorRegistry()
    registry.register(SpoolMetrics(one))
    lines = generate_latest(registry).decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {series: float(value) for series, value in pairs}


async def test_metrics_show_what_is_on_disk_and_what_is_lost_by_reason(tmp_path: Path) -> None:
    link, load = ScriptedLink(), Load()
    one = emitter(tmp_path, link, buffer_events_max=100)
    async with one:
        load.add(one, 90)
        await until(lambda: one.buffered == 0)
        load.add(one, 130)
        page = metrics(one)
        assert page["evenload_spool_up"] == 1
        assert page["evenload_spool_events"] == page["evenload_spool_written_events_total"] == 90
        assert page["evenload_spool_records"] == PARTITIONS
        assert page["evenload_spool_bytes"] > 1_000
        assert 0.1 < page["evenload_spool_oldest_seconds"] < 10
        assert page["evenload_spool_damaged_segments_total"] == 0
        assert page['evenload_telemetry_lost_events_total{reason="buffer_full"}'] == 30
        link.up.set()
        assert await one.flush()
    load.add(one, 5)
    page = metrics(one)
    assert page['evenload_telemetry_lost_events_total{reason="closed"}'] == 5
    assert page['evenload_telemetry_lost_events_total{reason="unreadable"}'] == 0
    assert page["evenload_spool_up"] == page["evenload_spool_bytes"] == page["evenload_spool_oldest_seconds"] == 0


async def test_while_kafka_takes_everything_the_disk_is_not_used(tmp_path: Path) -> None:
    link, load = ScriptedLink(), Load()
    link.up.set()
    async with emitter(tmp_path, link) as one:
        for _ in range(40):
            load.add(one, 20)
            await asyncio.sleep(0.01)
        assert await one.flush()
        assert one.overflow is not None
        assert one.overflow.stored_events == 0
    assert told(link.log) == load.observed


async def test_what_a_process_left_comes_before_what_the_next_one_observes(tmp_path: Path) -> None:
    away, load = ScriptedLink(), Load()
    for _ in range(2):  # two processes that never saw Kafka
        one = emitter(tmp_path, away)
        one.start()
        load.add(one, 700)
        assert not await one.close(0.2)
        assert (one.buffered, one.lost_events) == (0, 0)
    link = ScriptedLink()
    link.up.set()
    one = emitter(tmp_path, link)
    load.add(one, 700)  # before it is known what is on disk
    async with one:
        await until(lambda: one.sent_events == 2_100)
    assert told(link.log) == load.observed
    for batches in link.log.values():
        order = [incarnation for incarnation, _ in load.observed]
        places = [order.index(batch.incarnation) for batch in batches]
        assert places == sorted(places)


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_the_order_of_outages_restarts_and_partial_answers_each_sequence_arrives_whole(
    tmp_path: Path, seed: int
) -> None:
    rng, load = random.Random(seed), Load()
    link = ScriptedLink(rng)
    for _ in range(4):
        one = emitter(tmp_path, link, after_ms=100)
        one.start()
        for _ in range(12):
            load.add(one, rng.randint(0, 300))
            (link.up.set if rng.random() < 0.4 else link.up.clear)()
            await asyncio.sleep(rng.random() * 0.25)
        await one.close(0.1)
        assert one.lost_events == 0
    link.up.set()
    async with emitter(tmp_path, link) as one:
        await until(lambda: on_disk(one) == 0 and one.overflow is not None and one.overflow.ready.is_set())
    assert told(link.log) == load.observed
    for batches in link.log.values():
        positions: dict[int, int] = {}
        for batch in batches:  # repeated ones are allowed, steps back into another process's are not needed
            assert batch.seq >= positions.get(batch.incarnation, 0) - 12
            positions[batch.incarnation] = batch.seq


async def test_beyond_disk_and_memory_the_newest_are_lost_counted_and_no_sequence_has_a_hole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link, load = ScriptedLink(), Load()
    async with emitter(tmp_path, link, max_bytes=1024 * 1024, buffer_events_max=2_000) as one:
        while one.lost_events < 5_000:
            load.add(one, 1_500)
            await asyncio.sleep(0.05)
        assert one.overflow is not None
        assert one.overflow.folder.figures.bytes <= 1024 * 1024
        assert one.lost == {"buffer_full": one.lost_events, "closed": 0}
        lines = [record.getMessage() for record in caplog.records if record.name.startswith("evenload")]
        assert len(lines) == len({line.rstrip("0123456789") for line in lines}) <= 3
        link.up.set()
        await until(lambda: one.buffered == 0 and on_disk(one) == 0, 60)
        kept = sum(map(len, load.observed.values()))
        assert kept + one.lost_events == load.number
    assert told(link.log) == load.observed


async def test_a_folder_that_cannot_be_used_costs_one_line_and_what_memory_cannot_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    link, load = ScriptedLink(), Load()
    async with emitter(tmp_path / "file", link, buffer_events_max=500) as one:
        load.add(one, 600)
        await asyncio.sleep(0.6)
        assert (one.buffered, one.lost) == (500, {"buffer_full": 100, "closed": 0})
        assert one.alive
        assert [r.getMessage() for r in caplog.records if "no spool" in r.getMessage()] == [
            f"no spool: cannot use {tmp_path}/file/router-1/t.telemetry: Not a directory"
        ]
        link.up.set()
        assert await one.flush()
    assert told(link.log) == load.observed


async def test_two_processes_of_one_name_do_not_share_a_folder_and_both_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link, load = ScriptedLink(), Load()
    async with emitter(tmp_path, link) as one:
        load.add(one, 100)
        await until(lambda: on_disk(one) == 100)
        other = emitter(tmp_path, link)
        other.start()
        load.add(other, 100)
        await asyncio.sleep(0.5)
        assert (on_disk(other), other.buffered) == (0, 100)
        assert f"process {os.getpid()} uses it" in caplog.text
        link.up.set()
        assert await one.flush()
        assert await other.close()
    assert told(link.log) == load.observed


async def test_a_process_that_had_no_folder_takes_it_at_its_end_if_it_is_free_by_then(tmp_path: Path) -> None:
    away, load = ScriptedLink(), Load()
    one, other = emitter(tmp_path, away), emitter(tmp_path, away)
    for process in (one, other):
        process.start()
        assert process.overflow is not None
        await until(process.overflow.ready.is_set)
        load.add(process, 100)
    for process in (one, other):
        assert not await process.close(0.1)
        assert (process.buffered, process.lost_events) == (0, 0)
    link = ScriptedLink()
    link.up.set()
    async with emitter(tmp_path, link) as one:
        await until(lambda: one.sent_events == 200)
    assert told(link.log) == load.observed


async def test_the_disk_is_emptied_no_faster_than_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is being sent or was read when Kafka comes back does not wait: of 600 kB per partition that is most of it.
    for module in ("lane", "overflow"):
        monkeypatch.setattr(f"evenload.bus.{module}.GROUP_BYTES_MAX", 30_000)
    link, load = ScriptedLink(), Load()
    async with emitter(tmp_path, link, drain_events_per_s=30_000) as one:
        for _ in range(60):
            load.add(one, 1_000)
            await asyncio.sleep(0)
        await until(lambda: one.buffered == 0)
        link.up.set()
        begun = time.monotonic()
        await until(lambda: on_disk(one) == 0)
        assert time.monotonic() - begun > 0.7 * 60_000 / 30_000
    assert told(link.log) == load.observed


async def test_a_disk_that_hangs_does_not_stop_the_event_loop_nor_events(tmp_path: Path) -> None:
    link, load = ScriptedLink(), Load()
    async with emitter(tmp_path, link) as one:
        assert one.overflow is not None
        await until(one.overflow.ready.is_set)
        one.overflow._thread.submit(time.sleep, 1.5)  # a write that takes so long
        slowest_s = 0.0
        for _ in range(50):
            begun = time.perf_counter()
            load.add(one, 20)
            await asyncio.sleep(0.01)
            slowest_s = max(slowest_s, time.perf_counter() - begun)
        assert one.buffered == 1_000
        assert slowest_s < 0.3
        link.up.set()  # what is in memory needs no disk
        await until(lambda: one.sent_events > 0, 0.4)
        await until(lambda: one.buffered == 0)
    assert told(link.log) == load.observed


PROCESS = """
import asyncio, json, sys
from pathlib import Path
from tests.bus.scripted import ScriptedLink
from tests.bus.test_overflow import Load, emitter

async def run():
    load = Load()
    async with emitter(Path(sys.argv[1]), ScriptedLink()) as one:
        while True:
            load.add(one, 20)
            observed = {partition: len(numbers) for (_, partition), numbers in load.observed.items()}
            print(json.dumps([one.incarnation, observed]), flush=True)
            await asyncio.sleep(0.01)

asyncio.run(run())
"""


Told = list[tuple[float, tuple[int, dict[str, int]]]]  # when: incarnation, and how many events by partition


def live_and_be_killed(folder: Path, seconds: float) -> Told:
    """Run a process for so long; returns what it said it had observed."""
    lines: Told = []
    with subprocess.Popen([sys.executable, "-c", PROCESS, str(folder)], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        while not lines or lines[-1][0] < lines[0][0] + seconds:
            line = process.stdout.readline()
            lines.append((time.monotonic(), json.loads(line)))
        process.send_signal(signal.SIGKILL)
    return lines


async def test_of_processes_killed_with_kill_9_only_what_was_not_written_yet_is_missing(tmp_path: Path) -> None:
    rng = random.Random(3)
    lives = [await asyncio.to_thread(live_and_be_killed, tmp_path, 0.3 + 1.5 * rng.random()) for _ in range(3)]
    link = ScriptedLink()
    link.up.set()
    async with emitter(tmp_path, link) as one:
        assert one.overflow is not None
        await until(one.overflow.ready.is_set)
        assert one.overflow.folder.figures.damaged_segments == 0
        await until(lambda: on_disk(one) == 0)
    got = told(link.log)
    assert {incarnation for incarnation, _ in got} <= {lines[0][1][0] for lines in lives}
    load = Load()  # every process observes the same
    load.add(emitter(tmp_path / "other", ScriptedLink()), 20 * max(map(len, lives)) + 10_000)
    for lines in lives:
        # What was there when it was killed, less after_ms, a tick, and as much again for a machine that is busy.
        sure = [observed for at_s, (_, observed) in lines if at_s < lines[-1][0] - 0.8] or [{}]
        for (_, partition), observed in load.observed.items():
            arrived = got.get((lines[0][1][0], partition), [])
            assert arrived == observed[: len(arrived)]
            assert len(arrived) >= sure[-1].get(str(partition), 0)
    assert sum(map(len, got.values())) > 500
