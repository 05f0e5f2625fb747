"""The real worker on a real Kafka: exact over kill -9, poison, hand-over and a clean end."""

import asyncio
import contextlib
import itertools
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from evenload.schemas import Batch, InstanceState, decode_dead_letter, decode_snapshots, decode_state, encode
from evenload.scoring import DEFAULT, ScoringConfig, snapshot
from evenload.settings.scoring import UNKNOWN
from tests.kafka_fixtures import TestTopics
from tests.scorer.traffic import batches, pure_fold
from tests.scorer.worker import WorkerProcess, forget, read, running, wait_for, write

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
    await snapshots_are_the_fold(topics)


async def snapshots_are_the_fold(topics: TestTopics) -> None:
    """Each snapshot is what the pure fold of the log up to its `as_of` gives at its `now_ms`, bit for bit."""
    for partition in range(PARTITIONS):
        log = await read(topics.bootstrap, topics.names.telemetry, partition)
        records = await read(topics.bootstrap, topics.names.snapshots, partition)
        found = [decode_snapshots(data or b"") for *_, data in records]
        assert found
        assert [batch.now_ms for batch in found] == sorted(batch.now_ms for batch in found)
        assert [batch.as_of for batch in found] == sorted(batch.as_of for batch in found)
        assert {batch.partition for batch in found} == {partition}
        states: dict[str, InstanceState] = {}
        for batch in found:
            due = [record for record in log if record[0] <= batch.as_of]
            del log[: len(due)]
            pure_fold([(offset, at_ms, data or b"") for offset, at_ms, _, data in due], config_of, states)
            for item in batch.snapshots:
                name = item.state.instance
                assert encode(item) == encode(snapshot(states[name], batch.now_ms, config_of(name)))


@contextlib.asynccontextmanager
async def load(topics: TestTopics, traffic: Iterator[tuple[int, Batch]]) -> AsyncIterator[None]:
    """Write one or two hundred records a second meanwhile."""

    async def write_on() -> None:
        while not stop.is_set():
            await write(topics.bootstrap, topics.names.telemetry, list(itertools.islice(traffic, 20)))
            await asyncio.sleep(0.1)

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


def owning(worker: WorkerProcess, partitions: int) -> Callable[[], bool]:
    """Return the condition that a worker, kept running, owns so many partitions."""

    def condition() -> bool:
        worker.revive()
        return worker.metric("partitions") == partitions

    return condition


def more_records(worker: WorkerProcess, count: int) -> Callable[[], bool]:
    """Return the condition that a worker has applied `count` records more than now."""
    wanted = worker.metric("records_total") + count
    return lambda: worker.metric("records_total") >= wanted


async def test_states_are_exact_after_two_kills_under_load(topics: TestTopics, tmp_path: Path) -> None:
    rng = random.Random(7)
    worker = WorkerProcess(tmp_path, topics.bootstrap, topics.prefix)
    with running(worker):
        async with load(topics, batches(2, INSTANCES, PARTITIONS)):
            for _ in range(2):
                await until(more_records(worker, rng.randrange(100, 400)))
                await asyncio.sleep(rng.random())  # any moment between two checkpoints
                worker.kill()
                worker.start()
                await until(worker.ready)
        await eventually_equal(topics)
        assert worker.metric("missed_total") == 0


async def test_workers_take_over_from_one_that_stood_still_and_from_one_that_leaves(
    topics: TestTopics, tmp_path: Path
) -> None:
    first, second = (WorkerProcess(tmp_path, topics.bootstrap, topics.prefix) for _ in range(2))
    with running(first, second):
        async with load(topics, batches(4, INSTANCES, PARTITIONS)):
            await until(lambda: (first.metric("partitions"), second.metric("partitions")) == (2.0, 2.0))
            await until(lambda: first.metric("checkpoints_total") > 0)
            first.signal(signal.SIGSTOP)
            stopped = time.monotonic()
            await until(owning(second, PARTITIONS))
            await until(more_records(second, 50))
            await until(lambda: time.monotonic() - stopped > 3.5)  # longer than its session
            first.signal(signal.SIGCONT)
            assert await asyncio.to_thread(first.end) == 1  # and does not overwrite what its successor wrote
            first.start()
            await until(lambda: (first.metric("partitions"), second.metric("partitions")) == (2.0, 2.0))
            second.signal(signal.SIGTERM)
            assert await asyncio.to_thread(second.end) == 0
            await until(owning(first, PARTITIONS))
        await eventually_equal(topics)


async def test_a_lost_changelog_is_rebuilt_from_the_telemetry(topics: TestTopics, tmp_path: Path) -> None:
    worker = WorkerProcess(tmp_path, topics.bootstrap, topics.prefix)
    traffic = batches(5, INSTANCES, PARTITIONS)
    with running(worker):
        await write(topics.bootstrap, topics.names.telemetry, list(itertools.islice(traffic, 120)))
        await until(lambda: worker.metric("records_total") == 120)
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0
        await forget(topics.bootstrap, topics.names.state)
        await write(topics.bootstrap, topics.names.telemetry, list(itertools.islice(traffic, 40)))
        worker.start()
        await until(worker.ready)
        await eventually_equal(topics)
        assert worker.metric("rewound_records_total") == 120


STUCK = """
import asyncio, functools
from evenload.scorer import app, main
from evenload.settings import load_settings

async def hang(self, stream):
    async for _ in stream.noack().events():
        await asyncio.Event().wait()

app.ScorerApp._apply = hang
main.Watchdog = functools.partial(main.Watchdog, partition_ms=3_000.0)
main.run(load_settings())
"""


async def test_a_worker_whose_agent_hangs_is_ended_by_its_watchdog_and_the_next_one_goes_on(
    topics: TestTopics, tmp_path: Path
) -> None:
    stuck = WorkerProcess(tmp_path, topics.bootstrap, topics.prefix, program=("-c", STUCK))
    traffic = batches(6, INSTANCES, PARTITIONS)
    with running(stuck):
        await write(topics.bootstrap, topics.names.telemetry, list(itertools.islice(traffic, 100)))
        assert await asyncio.to_thread(stuck.end) == 1
        assert "records behind and has stood still for" in stuck.log_path.read_text()
    worker = WorkerProcess(tmp_path, topics.bootstrap, topics.prefix)
    with running(worker):
        await eventually_equal(topics)
