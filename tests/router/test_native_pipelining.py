"""Requests that come before the last one is answered: all get theirs, in order, and none hides that the client left."""

import asyncio
from typing import Any

import pytest

from evenload.router.native import PIPELINED_MAX
from tests.router.peer import GET, Impatient, peer


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with peer() as p:
        post = b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
        p.send(GET % b"slow" + post + GET % b"last")
        bodies = [(await p.answer())[1] for _ in range(3)]
        assert bodies == [b"GET /slow ", b"POST /body hello", b"GET /last "]


async def test_a_pipelined_request_whose_body_comes_later_is_served() -> None:
    async with peer() as p:
        p.send(GET % b"slow" + b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe")
        assert (await p.answer())[1] == b"GET /slow "
        await asyncio.sleep(0.02)
        p.send(b"llo")
        assert (await p.answer())[1] == b"POST /body hello"


async def test_a_pipelined_request_whose_body_does_not_come_is_given_up() -> None:
    async with peer(server=Impatient) as p:
        p.send(GET % b"slow" + b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe")
        assert (await p.answer())[1] == b"GET /slow "
        assert (await p.rest()).startswith(b"HTTP/1.1 408 ")


async def test_its_time_begins_when_it_is_its_turn() -> None:
    async with peer(server=Impatient) as p:
        p.send(GET % b"sleepy" + b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhe")
        assert (await p.answer())[1] == b"GET /sleepy "
        assert (await p.rest()).startswith(b"HTTP/1.1 408 ")


async def test_the_last_that_is_read_ahead_may_have_its_body_to_come() -> None:
    async with peer() as p:
        begun = b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
        p.send(GET % b"slow" + GET % b"next" * (PIPELINED_MAX - 1) + begun)
        for _ in range(PIPELINED_MAX):
            await p.answer()
        p.send(b"hello")
        async with asyncio.timeout(5):
            assert (await p.answer())[1] == b"POST /body hello"


async def test_more_pipelined_requests_than_are_read_ahead_are_all_answered_in_order() -> None:
    count = 20 * PIPELINED_MAX
    async with peer() as p:
        for number in range(count):
            p.send(GET % (b"slow?%d" % number if number == 0 else b"%d" % number))
            if number < 2 * PIPELINED_MAX:
                await asyncio.sleep(0.001)  # in pieces
        bodies = [(await p.answer())[1] for _ in range(count)]
        assert bodies == [b"GET /slow ", *[b"GET /%d " % number for number in range(1, count)]]


@pytest.mark.parametrize("pipelined", [0, 1, PIPELINED_MAX - 1])
async def test_a_client_that_leaves_is_noticed_whatever_it_has_pipelined(pipelined: int) -> None:
    gone = asyncio.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        del send
        await receive()
        if scope["path"] == "/first":
            assert (await receive())["type"] == "http.disconnect"
            gone.set()

    async with peer(wait) as p:
        p.send(GET % b"first" + GET % b"next" * pipelined)
        await asyncio.sleep(0.05)
        p.writer.transport.abort()
        async with asyncio.timeout(1):
            await gone.wait()


async def test_any_number_of_wishes_for_another_protocol_may_come_in_one_piece() -> None:
    wish = b"GET /%d HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: h2c\r\n\r\n"
    async with peer() as p:
        p.send(b"".join(wish % number for number in range(1500)))
        for number in range(1500):
            assert (await p.answer())[1] == b"GET /%d " % number


@pytest.mark.parametrize(
    "garbage",
    [
        b"nonsense\r\n\r\n",
        b"GET /half HTTP/1.1\r\nhost : x\r\n\r\n",
        b"POST /half HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n",
    ],
)
async def test_garbage_behind_pipelined_requests_costs_none_of_their_answers(garbage: bytes) -> None:
    async with peer(server=Impatient) as p:
        p.send(GET % b"sleepy" + GET % b"second" + GET % b"third" + garbage)  # longer than any limit of the connection
        answers = await p.rest()
        assert answers.count(b"HTTP/1.1 200 ") == answers.count(b"HTTP/1.1 ") == 3, answers
        assert answers.endswith(b"GET /third ")


async def test_garbage_behind_as_many_as_are_read_ahead_cuts_no_answer_that_takes_its_time() -> None:
    async with peer(server=Impatient) as p:  # reading was paused, and goes on while the second is answered
        p.send(GET % b"sleepy" * 2 + GET % b"next" * (PIPELINED_MAX - 1) + b"nonsense\r\n\r\n")
        answers = await p.rest()
        assert answers.count(b"HTTP/1.1 200 ") == PIPELINED_MAX + 1, answers
