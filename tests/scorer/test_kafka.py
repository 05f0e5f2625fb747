"""The real worker on a real Kafka: exact over kill -9, poison, hand-over and a clean end."""

import asyncio
import contextlib
import itertools
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from evenload.schemas import Batch, decode_dead_letter, decode_snapshots, decode_state, encode
from evenload.scoring import DEFAULT, ScoringConfig
from evenload.settings.scoring import UNKNOWN
from tests.kafka_fixtures import TestTopics
from tests.scorer.traffic import batches, pure_fold
from tests.scorer.worker import WorkerProcess, read, running, wait_for, write

pytestmark = pytest.mark.kafka

PARTITIONS = 4
INSTANCES = [f"i-{n}" for n in range(16)]


def config_of(instance: str) -> ScoringConfig:
    return DEFAULT if instance == "i-0" else UNKNOWN


async def expected(topics: TestTopics) -> dict[str, bytes]:
    """The pure fold of the whole log, as bytes by instance."""
    states: dict[str, bytes] = {}
    for partition in range(PARTITIONS):
        log = await read(topics.bootstrap, topics.names.telemetry, partition)
        folded = pure_fold([(offset, at_ms, data or b"") for offset, at_ms, _, data in log], config_of)
        states.update((name, encode(state)) for name, state in folded.items())
    return states


async def stored(topics: TestTopics) -> dict[str, bytes]:
    """The newest state record of every instance by `as_of`, as bytes."""
    states: dict[str, bytes] = {}
    for partition in range(PARTITIONS):
        for _, _, key, data in await read(topics.bootstrap, topics.names.state, partition):
            assert key is not None
            assert data is not None
            name = key.decode()
            if name not in states or decode_state(states[name]).as_of <= decode_state(data).as_of:
                states[name] = data
    return states


async def eventually_equal(topics: TestTopics) -> None:
    want = await expected(topics)
    assert len(want) == len(INSTANCES)
    for _ in range(60):
        have = await stored(topics)
        if have == want:
            return
        await asyncio.sleep(0.25)
    different = [name for name in want if have.get(name) != want[name]]
    pytest.fail(f"{len(different)} of {len(want)} states differ: {different[0]}")


async def test_states_and_snapshots_are_the_pure_fold_of_the_log_and_poison_does_not_stop_it(
    topics: TestTopics, tmp_path: Path
) -> None:
    worker = WorkerProcess(tmp_path, topics.bootstrap, topics.prefix)
    traffic = batches(1, INSTANCES, PARTITIONS)
    with running(worker):
        await write(topics.bootstrap, topics.names.telemetry, list(itertools.islice(traffic, 200)))
        await write(topics.bootstrap, topics.names.telemetry, [(0, b"\xc1 not MessagePack")])
        await write(topics.bootstrap, topics.names.telemetry, list(itertools.islice(traffic, 200)))
        await eventually_equal(topics)
        assert worker.metric("dead_letters_total") == 1
        assert worker.metric("events_total") == 4000
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0
    letters = await read(topics.bootstrap, topics.names.dead_letters, 0)
    letter = decode_dead_letter(letters[0][3] or b"")
    assert len(letters) == 1
    assert (letter.topic, letter.partition, letter.payload) == (topics.names.telemetry, 0, b"\xc1 not MessagePack")
    assert letter.reason.startswith("corrupt")
    await snapshots_are_consistent(topics)


async def snapshots_are_consistent(topics: TestTopics) -> None:
    want = {name: decode_state(data) for name, data in (await expected(topics)).items()}
    for partition in range(PARTITIONS):
        records = await read(topics.bootstrap, topics.names.snapshots, partition)
        found = [decode_snapshots(data or b"") for *_, data in records]
        assert [batch.now_ms for batch in found] == sorted(batch.now_ms for batch in found)
        assert [batch.as_of for batch in found] == sorted(batch.as_of for batch in found)
        assert {batch.partition for batch in found} == {partition}
        last = {item.state.instance: item.state for batch in found for item in batch.snapshots}
        for name, state in last.items():
            assert (state.successes, state.errors) == (want[name].successes, want[name].errors)


@contextlib.asynccontextmanager
async def load(topics: TestTopics, traffic: Iterator[tuple[int, Batch]]) -> AsyncIterator[None]:
    """Write some hundred records a second meanwhile."""

    async def write_on() -> None:
        while not stop.is_set():
            await write(topics.bootstrap, topics.names.telemetry, list(itertools.islice(traffic, 20)))
            await asyncio.sleep(0.02)

    stop = asyncio.Event()
    writing = asyncio.create_task(write_on())
    try:
        yield
    finally:
        stop.set()
        await writing


async def until(condition: Callable[[], bool]) -> None:
    """Wait without holding up the load."""
    await asyncio.to_thread(wait_for, condition)


async def test_states_are_exact_after_two_kills_under_load(topics: TestTopics, tmp_path: Path) -> None:
    rng = random.Random(7)
    worker = WorkerProcess(tmp_path, topics.bootstrap, topics.prefix)
    with running(worker):
        async with load(topics, batches(2, INSTANCES, PARTITIONS)):
            for _ in range(2):
                applied = worker.metric("records_total") + rng.randrange(100, 400)
                await until(lambda applied=applied: worker.metric("records_total") >= applied)
                await asyncio.sleep(rng.random())  # any moment between two checkpoints
                worker.kill()
                worker.start()
                await until(worker.ready)
        await eventually_equal(topics)
        assert worker.metric("missed_total") == 0


async def test_a_worker_that_stood_still_ends_instead_of_overwriting_its_successor(
    topics: TestTopics, tmp_path: Path
) -> None:
    first, second = (WorkerProcess(tmp_path, topics.bootstrap, topics.prefix) for _ in range(2))
    with running(first, second):
        async with load(topics, batches(4, INSTANCES, PARTITIONS)):
            await until(lambda: (first.metric("partitions"), second.metric("partitions")) == (2.0, 2.0))
            await until(lambda: first.metric("checkpoints_total") > 0)
            first.signal(signal.SIGSTOP)
            await until(lambda: second.metric("partitions") == PARTITIONS)
            applied = second.metric("records_total") + 100
            await until(lambda: second.metric("records_total") > applied)
            first.signal(signal.SIGCONT)
            assert await asyncio.to_thread(first.end) == 1
        await eventually_equal(topics)


async def test_another_worker_takes_over_what_one_leaves(topics: TestTopics, tmp_path: Path) -> None:
    first, second = (WorkerProcess(tmp_path, topics.bootstrap, topics.prefix) for _ in range(2))
    traffic = batches(3, INSTANCES, PARTITIONS)
    with running(first, second):
        wait_for(lambda: (first.metric("partitions"), second.metric("partitions")) == (2.0, 2.0))
        await write(topics.bootstrap, topics.names.telemetry, list(itertools.islice(traffic, 200)))
        wait_for(lambda: first.metric("events_total") + second.metric("events_total") == 2000)
        first.signal(signal.SIGTERM)
        await write(topics.bootstrap, topics.names.telemetry, list(itertools.islice(traffic, 200)))
        assert first.end() == 0
        wait_for(lambda: second.metric("partitions") == PARTITIONS)
        await eventually_equal(topics)
