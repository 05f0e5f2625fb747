"""F25: when a client is told to come back that nobody had room for."""

import pytest

from evenload.router.fake_wire import error
from evenload.router.fakes import post
from evenload.schemas import Membership
from tests.router.stage import BUSY, GOOD, STREAM, fleet, stage


@pytest.mark.behind_the_server
async def test_where_engines_give_no_time_it_is_that_of_the_shortest_cooling() -> None:
    async with fleet([error(503, BUSY)], [error(503, BUSY, ("retry-after", "20"))]) as f:
        got = await post(f.url, STREAM)
        assert (got.status, got.headers[b"retry-after"]) == (503, b"3")  # `scoring.cooling_ms`


@pytest.mark.behind_the_server
async def test_who_has_left_the_fleet_has_no_room_for_anybody() -> None:
    async with fleet([error(503, BUSY)], GOOD) as f:
        f.router.dispatcher.tell(Membership(instance="b", change="left"))
        got = await post(f.url, STREAM)
        assert (got.status, got.headers[b"retry-after"]) == (503, b"3")
        assert f.requests("b") == 0


async def test_a_time_is_told_in_whole_seconds_rounded_up() -> None:
    async with stage([error(503, BUSY, ("retry-after-ms", "6500"))]) as s:
        assert (await post(s.url, STREAM)).headers[b"retry-after"] == b"7"
