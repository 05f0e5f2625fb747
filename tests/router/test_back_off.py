"""F27: how long is waited before the same instance is asked again."""

import random
import time

import pytest

from evenload.router.fake_wire import Stall, error, sse
from evenload.router.fakes import post
from evenload.router.limits import Limits
from tests.router.stage import BUSY, GOOD, GOOD_BODY, STREAM, stage


class Latest(random.Random):
    """Draws the upper end."""

    def uniform(self, a: float, b: float) -> float:
        del a
        return b


@pytest.mark.parametrize(("longest_s", "waits_s"), [(1.0, 0.15 + 0.3), (0.2, 0.15 + 0.2), (0.1, 0.1 + 0.1)])
async def test_it_doubles_up_to_a_bound_and_is_not_given_up_at_it(longest_s: float, waits_s: float) -> None:
    limits = Limits(back_off_s=0.1, back_off_s_max=longest_s)
    async with stage([[error(503, BUSY)], [error(503, BUSY)], GOOD], limits=limits, rng=Latest()) as s:
        began_s = time.monotonic()
        assert (await post(s.url, STREAM)).body == GOOD_BODY
        assert time.monotonic() - began_s >= waits_s
        assert len(s.engines[0].requests) == 3


async def test_the_first_tokens_time_counts_from_when_the_request_was_sent_not_from_before_the_wait() -> None:
    limits = Limits(back_off_s=0.4)
    slow = [*sse(end=False), Stall(0.05), *GOOD[1:]]
    async with stage([[error(503, BUSY)], slow], limits=limits, rng=Latest()) as s:
        assert (await post(s.url, STREAM)).body == GOOD_BODY
        ttft_ms = s.dispatcher.leases[1].first_token_ms
        assert ttft_ms is not None
        assert 50 <= ttft_ms < 400  # of the 600 that it waited, nothing
        assert s.dispatcher.leases[1].end["duration_ms"] < 400


async def test_an_instance_that_was_busy_twice_is_told_by_its_last_word() -> None:
    soon, later = error(429, "queue is full", ("retry-after-ms", "100")), error(503, BUSY, ("retry-after", "7"))
    async with stage([[soon], [later]]) as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.headers[b"retry-after"]) == (503, b"7")
        assert len(s.engines[0].requests) == 2
