"""429 and 503 are load, not a fault"""

import asyncio

import pytest

from evenload.router.fake_wire import error

from .asks import BOOM, BUSY, PLAIN_ASK, STREAM_ASK, TOO_MANY, assert_good
from .client import ask
from .engines import PLAIN, PLAIN_TEXT, STREAM, Engines
from .target import Target

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BURST = 12
BACK_S = 6.0  # the longest cooling of an engine that names no time, and a little


async def returns_after(target: Target, engines: Engines, bad: bytes) -> float:
    """Let all engines refuse a burst, then be good; returns the seconds until a request is served again."""
    engines.script([bad])
    await asyncio.gather(*(ask(target.url, STREAM_ASK) for _ in range(BURST)))
    engines.script(STREAM)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while (await ask(target.url, STREAM_ASK)).status != 200 and loop.time() - began_s < BACK_S:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return loop.time() - began_s


@pytest.mark.parametrize("status", [429, 503])
async def test_when_all_are_busy_the_answer_is_429_or_503_in_the_apis_form(
    target: Target, engines: Engines, status: int
) -> None:
    engines.script([TOO_MANY if status == 429 else BUSY])
    reply = await ask(target.url, STREAM_ASK)
    assert reply.status in (429, 503), f"expected 429 or 503, got {reply}"
    assert reply.error is not None, f"not in the API's form: {reply}"


async def test_when_all_are_busy_the_answer_says_when_to_come_back(target: Target, engines: Engines) -> None:
    engines.script([error(429, "Too many requests in the queue.", ("retry-after", "3"))])
    reply = await ask(target.url, PLAIN_ASK)
    after = reply.header(b"retry-after") or b""
    assert after.isdigit(), f"Retry-After is {after!r}: {reply}"
    assert 1 <= int(after) <= 60, f"Retry-After is {after!r}: {reply}"


async def test_after_a_burst_of_503_the_engines_are_used_again_as_soon_as_they_answer(
    target: Target, engines: Engines
) -> None:
    waited_s = await returns_after(target, engines, BUSY)
    assert waited_s < BACK_S, f"still refused {BACK_S:g} s after the engines answered again"


async def test_after_a_burst_of_429_the_engines_are_used_again_as_soon_as_they_answer(
    target: Target, engines: Engines
) -> None:
    waited_s = await returns_after(target, engines, TOO_MANY)
    assert waited_s < BACK_S, f"still refused {BACK_S:g} s after the engines answered again"


async def test_when_every_engine_has_failed_the_first_that_is_well_again_is_asked(
    target: Target, engines: Engines
) -> None:
    waited_s = await returns_after(target, engines, BOOM)
    assert waited_s < BACK_S, f"still refused {BACK_S:g} s after the engines answered again"


async def test_many_errors_of_clients_put_no_engine_aside(target: Target, engines: Engines) -> None:
    engines.script([error(400, "max_tokens is too large: 99999.")])
    await asyncio.gather(*(ask(target.url, PLAIN_ASK) for _ in range(BURST)))
    engines.script(PLAIN)
    assert_good(await ask(target.url, PLAIN_ASK), PLAIN_TEXT)
