"""An instance whose port is closed and whose connections are silent: nobody waits for it as long as for a slow one."""

import asyncio
from typing import Any

import pytest

from evenload.router.fake_wire import SSE_HEAD, Stall, chunk, content, finish, role, sse
from evenload.router.fakes import Got, post
from evenload.router.gone import LOOKS, LOOKS_UNBEGUN, Gone
from evenload.schemas import Membership
from tests.router.stage import GOOD, GOOD_BODY, PLAIN, STREAM, Fleet, events, fleet, until

LOOK_MS = 20.0
SILENT: list[Any] = [SSE_HEAD, chunk(role()), Stall()]
BROKEN: list[Any] = [SSE_HEAD, chunk(role()), chunk(content("Hel")), Stall()]
SLOW: list[Any] = [SSE_HEAD, chunk(role())]
for letter in "abcdefgh":  # between two of them there are fewer looks than it takes
    SLOW += [Stall(LOOK_MS * (LOOKS - 2) / 1000), chunk(content(letter))]
SLOW += sse(finish())[1:]


async def asked(f: Fleet, body: Any = STREAM) -> "asyncio.Task[Got]":
    """Send one request; "a" has it and "b" was excluded meanwhile."""
    dispatcher = f.router.dispatcher
    dispatcher.gone = Gone(LOOK_MS)
    if "b" in f.engines:
        say(f, "b", "not_ready", "health_503")
    task = asyncio.create_task(post(f.url, body))
    await until(lambda: f.requests("a"))
    if "b" in f.engines:
        say(f, "b", "ready")
    return task


def say(f: Fleet, name: str, change: Any, cause: str = "") -> None:
    """Say what the collector says."""
    f.router.dispatcher.tell(Membership(instance=name, change=change, cause=cause))


async def test_a_stream_that_is_silent_before_content_is_made_good_by_another_instance() -> None:
    async with fleet(SILENT, GOOD) as f:
        task = await asked(f)
        say(f, "a", "not_ready", "refused")
        assert (await task).body == GOOD_BODY
        assert f.router.dispatcher.gone.given_up == 1
        assert f.state("a").errors == 1


async def test_a_stream_that_goes_silent_after_content_is_told_and_not_asked_again() -> None:
    async with fleet(BROKEN, GOOD) as f:
        task = await asked(f)
        say(f, "a", "not_ready", "refused")
        got = await task
        assert (got.status, got.whole) == (200, True)
        assert events(got)[-1]["error"]["code"] == "gone"
        assert f.requests("b") == 0


@pytest.mark.parametrize(("change", "cause"), [("ready", ""), ("not_ready", "health_503"), ("not_ready", "stalled")])
async def test_while_the_port_is_open_silence_is_left_to_the_timeouts(change: str, cause: str) -> None:
    async with fleet(BROKEN, timeouts={"idle_s": 30 * LOOK_MS / 1000}) as f:
        task = await asked(f)
        say(f, "a", change, cause)
        assert events(await task)[-1]["error"]["code"] == "idle"
        assert f.router.dispatcher.gone.given_up == 0


async def test_a_stream_that_goes_on_is_finished_although_the_port_is_closed() -> None:
    async with fleet(SLOW) as f:
        task = await asked(f)
        say(f, "a", "not_ready", "refused")
        assert b"".join(map(content, "abcdefgh")) in (await task).body.replace(role(), b"")
        assert f.router.dispatcher.gone.given_up == 0


async def test_an_answer_that_has_not_begun_gets_more_time_for_it_may_come_whole() -> None:
    async with fleet([Stall()], GOOD) as f:
        task = await asked(f, PLAIN)
        say(f, "a", "not_ready", "refused")
        began_s = asyncio.get_running_loop().time()
        assert (await task).status == 200
        waited_s = asyncio.get_running_loop().time() - began_s
        assert waited_s > LOOK_MS * (LOOKS_UNBEGUN - 1) / 1000
        assert f.router.dispatcher.gone.given_up == 1
