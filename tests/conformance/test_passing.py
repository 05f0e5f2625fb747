"""What passes, passes unchanged and at once"""

import asyncio
import json

import pytest

from evenload.router.fake_wire import (
    DONE,
    END,
    SSE_HEAD,
    Gate,
    Trickle,
    chunk,
    content,
    finish,
    response,
    role,
    sse,
)

from .asks import PLAIN_ASK, STREAM_ASK, assert_good
from .client import Wire, ask
from .engines import MODEL, PLAIN, PLAIN_BODY, PLAIN_TEXT, STREAM, Engines
from .target import Target

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

MIB = 1024 * 1024
AT_ONCE = 64
# Everything that server-sent events allow: comments, ids, retry, CRLF, odd spaces, fields of the engine's own.
ODD_STREAM = (
    b": hello\r\n\r\nretry: 3000\r\n\r\nid: 7\r\ndata:   " + role()[6:-2] + b"\r\n\r\n"
    b'data: {"x_engine": 1.50e1,  "choices":[{"index":0,"delta":{"content":"Gr\\u00fc\xc3\x9fe"}}]}'
    b"\n\n"
    + finish()
    + b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n'
    + DONE
    + b": bye\n\n"
)


async def test_a_json_answer_passes_byte_for_byte(target: Target, engines: Engines) -> None:
    reply = await ask(target.url, PLAIN_ASK)
    assert_good(reply, PLAIN_TEXT)
    assert reply.body == PLAIN_BODY, f"the body was rewritten: {reply.body[:120]!r}"


async def test_a_stream_passes_byte_for_byte(target: Target, engines: Engines) -> None:
    engines.script([SSE_HEAD, chunk(ODD_STREAM[:100]), chunk(ODD_STREAM[100:]), END])
    reply = await ask(target.url, STREAM_ASK)
    assert_good(reply, PLAIN_TEXT)
    assert reply.body == ODD_STREAM, f"the stream was rewritten: {reply.body[:120]!r}"


async def test_a_request_reaches_the_engine_byte_for_byte(target: Target, engines: Engines) -> None:
    sent = (
        b'{ "x_own": {"b":1.0, "a":1e2}, "model" : "tiny",\n "messages":[{"role":"user","content":"\\u00fc"}],'
        b'  "temperature": 0.50, "seed": 1 }\n'
    )
    assert_good(await ask(target.url, sent), PLAIN_TEXT)
    assert engines.asked[0].body == sent, f"the request was rewritten: {engines.asked[0].body[:120]!r}"


async def test_the_query_reaches_the_engine(target: Target, engines: Engines) -> None:
    await ask(target.url, PLAIN_ASK, path="/v1/chat/completions?api-version=2026-01&x=%20y")
    path = engines.asked[0].path if engines.asked else b"nothing"
    assert path == b"/v1/chat/completions?api-version=2026-01&x=%20y", f"the engine got {path!r}"


async def test_each_event_is_passed_on_at_once(target: Target, engines: Engines) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    steps: list[object] = [SSE_HEAD, chunk(role())]
    for number, gate in enumerate(gates):
        steps += [chunk(content(f"part-{number}")), Gate(gate)]
    engines.script([*steps, chunk(finish() + DONE), END])  # type: ignore[list-item]
    async with Wire(target.url) as wire:
        await wire.send("/v1/chat/completions", json.dumps(STREAM_ASK).encode())
        for number, gate in enumerate(gates):
            await wire.until(f"part-{number}".encode())  # before the engine goes on
            gate.set()
        await wire.until(b"[DONE]")


async def test_events_that_are_split_anywhere_arrive_whole(target: Target, engines: Engines) -> None:
    frames = role() + content("Grü") + content("ße") + finish() + DONE
    frames = frames.replace(b"\\u00fc", "ü".encode()).replace(b"\\u00df", "ß".encode())  # cut inside a character, too
    framed = b"".join(chunk(frames[start : start + 7]) for start in range(0, len(frames), 7)) + END
    engines.script([SSE_HEAD, Trickle(framed)])
    assert_good(await ask(target.url, STREAM_ASK), PLAIN_TEXT)


async def test_an_event_of_two_mebibytes_passes(target: Target, engines: Engines) -> None:
    text = "x" * (2 * MIB)
    engines.script(sse(role(), content(text), finish(), DONE))
    assert (reply := await ask(target.url, STREAM_ASK)).text == text, f"not the text that was sent: {reply}"


async def test_a_request_of_16_mebibytes_passes(target: Target, engines: Engines) -> None:
    text = "x" * (16 * MIB)
    assert_good(await ask(target.url, {"model": MODEL, "messages": [{"role": "user", "content": text}]}), PLAIN_TEXT)
    assert text.encode() in engines.asked[0].body, "the engine did not get the prompt"


async def test_an_answer_of_16_mebibytes_passes(target: Target, engines: Engines) -> None:
    text = "x" * (16 * MIB)
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    engines.script([response(200, json.dumps({"object": "chat.completion", "choices": [choice]}).encode())])
    assert (reply := await ask(target.url, PLAIN_ASK)).text == text, f"not the text that was sent: {reply}"


async def test_completions_and_embeddings_are_served(target: Target, engines: Engines) -> None:
    completion = b'{"object":"text_completion","choices":[{"index":0,"text":"Hello","finish_reason":"stop"}]}'
    engines.script([response(200, completion)])
    assert_good(await ask(target.url, {"model": MODEL, "prompt": "Hi"}, path="/v1/completions"), "Hello")
    embedding = b'{"object":"list","model":"tiny","data":[{"object":"embedding","index":0,"embedding":[0.5,-0.25]}]}'
    engines.script([response(200, embedding)])
    reply = await ask(target.url, {"model": MODEL, "input": "Hi"}, path="/v1/embeddings")
    data = (reply.json or {}).get("data") or [{}]
    assert data[0].get("embedding") == [0.5, -0.25], f"expected the embedding, got {reply}"


async def test_text_that_speaks_of_errors_is_text(target: Target, engines: Engines) -> None:
    for text in ('data: {"error": {"code": 500}}', "event: error", '{"error":{"message":"boom"}}', "[DONE]"):
        engines.script(sse(role(), content(text), finish(), DONE))
        assert_good(await ask(target.url, STREAM_ASK), text)
        assert len(engines.asked) == 1, f"asked {len(engines.asked)} times for {text!r}"


async def test_64_streams_at_once_do_not_mix(target: Target, engines: Engines) -> None:
    engines.script(*(sse(role(), content(f"<{n}"), content(f"-{n}>"), finish(), DONE) for n in range(AT_ONCE)), STREAM)
    replies = await asyncio.gather(*(ask(target.url, STREAM_ASK) for _ in range(AT_ONCE)))
    expected = sorted(f"<{n}-{n}>" for n in range(AT_ONCE))
    got = sorted(reply.text for reply in replies)
    assert got == expected, f"{sum(text in expected for text in set(got))} of {AT_ONCE} streams came as they were sent"


async def test_a_request_in_chunks_is_served(target: Target, engines: Engines) -> None:
    long = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 5000}]}
    assert_good(await ask(target.url, long, chunked=True), PLAIN_TEXT)
    assert b"x" * 5000 in engines.asked[0].body, "the engine did not get the whole body"


async def test_a_connection_is_kept_for_the_next_request(target: Target, engines: Engines) -> None:
    engines.script(STREAM, PLAIN, STREAM)
    async with Wire(target.url) as wire:
        for body, text in ((STREAM_ASK, "Hello"), (PLAIN_ASK, PLAIN_TEXT), (STREAM_ASK, "Hello")):
            await wire.send("/v1/chat/completions", json.dumps(body).encode())
            assert_good(await wire.reply(), text)
