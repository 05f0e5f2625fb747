"""Tasks that go on, and loggers that do not."""

import asyncio
import logging
import subprocess
import sys

from evenload.bus.client_logs import AWAY, ClientFilter, limited_logger
from evenload.bus.forever import Forever
from evenload.bus.logs import RateLimitFilter


async def test_work_that_fails_or_lets_out_a_cancellation_of_its_own_is_started_again() -> None:
    runs, third = [0], asyncio.Event()

    async def work() -> None:
        runs[0] += 1
        if runs[0] == 1:
            raise RuntimeError("first")
        if runs[0] == 2:
            raise asyncio.CancelledError
        third.set()
        await asyncio.Event().wait()

    task = Forever("work", work, backoff_s=0.01)
    async with asyncio.timeout(5):
        await third.wait()
    assert (task.failures, task.alive) == (2, True)
    await task.stop()
    assert not task.alive


def record(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord("aiokafka", level, "x.py", 1, text, None, None)


def test_the_client_library_speaks_only_when_nothing_of_ours_says_what_is_wrong() -> None:
    now_s = [0.0]

    def at(second: float, *, ours: bool = False) -> bool:
        now_s[0] = second
        line = record(logging.ERROR, f"at {second}")
        if ours:
            line.cause = AWAY["cause"]
        return (limit if ours else client).filter(line)

    limit = RateLimitFilter(clock=lambda: now_s[0])
    client = ClientFilter(limit, 10.0, clock=lambda: now_s[0])
    assert not at(0.0)  # ours have their turn first
    assert at(1.0, ours=True)
    assert not any(at(float(second)) for second in range(2, 21))
    assert at(21.0)  # of 19 s nothing of ours
    assert not any(at(float(second)) for second in range(22, 41))
    assert at(41.0)
    assert not at(100.0)  # new trouble
    assert not at(110.0)
    assert at(120.0)


_THREE_LOSE_KAFKA = """
import asyncio, logging, sys
from evenload.bus.emitter import Emitter
from evenload.bus.records import RecordSender
from evenload.bus.snapshots import SnapshotReader
from evenload.schemas import Outcome

async def main():
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING)
    async with (
        Emitter("127.0.0.1:1", "x", "p", partitions=2, linger_ms_min=5, linger_ms_max=5) as emitter,
        RecordSender(emitter.link, "x.decisions", partitions=2, linger_ms=5) as decisions,
        SnapshotReader("127.0.0.1:1", "x", 2, print),
    ):
        for name in "abcd":
            emitter.add(Outcome(instance=name, kind="ok"), 0)
            decisions.send(name.encode(), b"x")
        await asyncio.sleep(6)
        print("over", flush=True)

asyncio.run(main())
"""


def test_three_connections_that_lose_kafka_are_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", _THREE_LOSE_KAFKA], stdout=subprocess.PIPE, text=True, check=True)
    first, second, *_ = done.stdout.splitlines()
    assert "trying again" in first
    assert second == "over"


def test_a_limited_logger_has_one_filter_however_often_it_is_asked_for() -> None:
    for _ in range(3):
        logger = limited_logger("evenload.test.limited")
    assert [type(only) for only in logger.filters] == [RateLimitFilter]
