"""Logs stay readable while a cause repeats itself."""

import logging
from collections.abc import Iterator

import pytest

from evenload.bus.logs import RateLimitFilter, quieten


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def record(text: str, *args: object, name: str = "lib", level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord(name, level, __file__, 1, text, args, None)


def test_a_repeated_cause_is_written_once_per_period_with_a_count(clock: Clock) -> None:
    limit = RateLimitFilter(clock=clock)
    assert limit.filter(record("node %d is away", 1))
    assert not limit.filter(record("node %d is away", 2))
    assert not limit.filter(record("node 3 is away"))
    clock.now_s = 10.0
    again = record("node %d is away", 4)
    assert limit.filter(again)
    assert again.getMessage() == "node 4 is away (2 more of this cause held back)"


def test_other_causes_levels_and_loggers_are_not_held_back(clock: Clock) -> None:
    limit = RateLimitFilter(clock=clock)
    assert limit.filter(record("away"))
    assert limit.filter(record("back"))
    assert limit.filter(record("away", level=logging.CRITICAL))
    assert limit.filter(record("away", name="other"))


def test_records_below_the_level_are_never_held_back(clock: Clock) -> None:
    limit = RateLimitFilter(clock=clock)
    assert all(limit.filter(record("done", level=logging.INFO)) for _ in range(5))


def test_all_that_one_library_says_can_count_as_one_cause(clock: Clock) -> None:
    limit = RateLimitFilter(one_cause=["lib"], clock=clock)
    assert limit.filter(record("away"))
    assert not limit.filter(record("something else", name="lib.part"))
    assert limit.filter(record("away", name="library"))


def test_the_number_of_remembered_causes_is_bounded(clock: Clock) -> None:
    limit = RateLimitFilter(clock=clock)
    for n in range(2000):
        assert limit.filter(record(f"cause {'x' * (n % 150)}{chr(200 + n // 150)}"))
    assert len(limit._seen) <= 256


@pytest.fixture
def root_handler() -> Iterator[logging.Handler]:
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)
    logging.getLogger("evenload-test-library").setLevel(logging.NOTSET)


def test_quietening_twice_limits_each_handler_once(root_handler: logging.Handler) -> None:
    before = {handler: list(handler.filters) for handler in logging.getLogger().handlers}
    try:
        quieten("evenload-test-library")
        quieten("evenload-test-library")
        assert [type(limit) for limit in root_handler.filters] == [RateLimitFilter]
        assert logging.getLogger("evenload-test-library").level == logging.WARNING
    finally:
        for handler, filters in before.items():
            handler.filters[:] = filters
