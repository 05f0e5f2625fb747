"""After content nothing is generated twice, and the client can tell that an answer is not whole"""

import asyncio
import json

import pytest

from evenload.router.fake_wire import DONE, END, Cut, Reset, Script, Stall, chunk, content, error_frame, response

from .asks import BEGUN, BROKEN_OFF, PLAIN_ASK, STREAM_ASK
from .client import Reply, ask
from .engines import STREAM, Engines
from .target import Target

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

LATER_S = 0.5  # a retry would have been sent by then


async def broken(target: Target, engines: Engines, script: Script) -> Reply:
    """Ask for a stream that breaks; the client must see its beginning, and that it broke."""
    engines.script(script, STREAM)
    reply = await ask(target.url, STREAM_ASK)
    assert reply.text.startswith("Hel"), f"the content before the fault is lost: {reply}"
    assert "Hello" not in reply.text, f"content of a second attempt was added: {reply}"
    assert reply.says_broken, f"looks like a good, whole answer: {reply}"
    return reply


async def test_a_stream_that_broke_is_not_asked_for_again(target: Target, engines: Engines) -> None:
    engines.script(BROKEN_OFF, STREAM)
    await ask(target.url, STREAM_ASK)
    await asyncio.sleep(LATER_S)
    assert len(engines.asked) == 1, f"asked {len(engines.asked)} times"


async def test_a_cut_between_events_can_be_seen(target: Target, engines: Engines) -> None:
    await broken(target, engines, BROKEN_OFF)


async def test_a_cut_inside_an_event_can_be_seen(target: Target, engines: Engines) -> None:
    await broken(target, engines, [*BEGUN, chunk(content("never whole")[:30]), Cut()])


async def test_a_reset_can_be_seen(target: Target, engines: Engines) -> None:
    await broken(target, engines, [*BEGUN, Reset()])


async def test_a_stream_that_ends_without_finish_reason_can_be_told_from_a_whole_one(
    target: Target, engines: Engines
) -> None:
    await broken(target, engines, [*BEGUN, END])


async def test_an_error_event_passes_with_its_message(target: Target, engines: Engines) -> None:
    dead = error_frame(500, "EngineCore encountered an issue.")
    reply = await broken(target, engines, [*BEGUN, chunk(dead), END])
    assert b"EngineCore encountered an issue." in reply.body, f"the engine's words are lost: {reply}"


async def test_done_after_an_error_does_not_make_it_good(target: Target, engines: Engines) -> None:
    reply = await broken(target, engines, [*BEGUN, chunk(error_frame(500, "boom") + DONE), END])
    assert len(engines.asked) == 1, f"asked {len(engines.asked)} times: {reply}"


async def test_a_cut_that_has_no_chunked_framing_can_be_seen(target: Target, engines: Engines) -> None:
    # A stream of HTTP/1.0 style ends with the connection: only its content tells that it is not whole.
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    await broken(target, engines, [head, content("Hel"), Stall(0.2), Cut()])


async def test_a_long_json_answer_that_is_cut_can_be_seen(target: Target, engines: Engines) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "x" * 2_000_000}, "finish_reason": "stop"}
    whole = response(200, json.dumps({"object": "chat.completion", "choices": [choice]}).encode())
    engines.script([whole[:-1000], Cut()])
    reply = await ask(target.url, PLAIN_ASK)
    assert reply.says_broken, f"looks like a good, whole answer: {reply}"


async def test_an_answer_shorter_than_its_length_is_never_taken_for_whole(target: Target, engines: Engines) -> None:
    body = b'{"object":"chat.completion","choices":[]}'
    engines.script([b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n" + body, Cut()])
    reply = await ask(target.url, PLAIN_ASK)
    assert reply.says_broken, f"looks like a good, whole answer: {reply}"
