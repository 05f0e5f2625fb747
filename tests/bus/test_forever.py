"""Tasks that go on, and loggers that do not."""

import asyncio
import logging

from evenload.bus.client_logs import OneLineFilter, limited_logger
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


def test_the_client_library_gets_one_line_per_level_and_period() -> None:
    now_s = [0.0]
    only = OneLineFilter(10.0, clock=lambda: now_s[0])
    assert [only.filter(record(logging.ERROR, text)) for text in "abc"] == [True, False, False]
    assert only.filter(record(logging.WARNING, "d"))
    now_s[0] = 10.0
    assert only.filter(record(logging.ERROR, "a"))


def test_a_limited_logger_has_one_filter_however_often_it_is_asked_for() -> None:
    for _ in range(3):
        logger = limited_logger("evenload.test.limited")
    assert [type(only) for only in logger.filters] == [RateLimitFilter]
