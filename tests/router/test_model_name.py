"""The model's name in answers is the client's where configured, and foreign JSON keeps its own."""

import gzip
from typing import Any

import pytest

from evenload.router import fake_protocols as wire
from evenload.router.fake_wire import content, response, sse
from evenload.router.fakes import ScriptedUpstream, post
from evenload.router.model_name import ERROR_BYTES_MAX, ModelName, NameRewriter, OuterModelName
from tests.router.protocols import ASKED, MESSAGES, RESPONSES
from tests.router.stage import fleet, replica
from tests.router.test_providers import settings_of


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_only_the_outer_model_is_renamed_in_answers_that_hold_foreign_json(size: int) -> None:
    tool = b'{"type":"tool_use","input":{"model":"corolla","message":{"model":"beetle"}}}'
    start, events = wire.message_start(), wire.message_text('"model":"x"')
    delta = b"event: x\r\ndata: " + tool + b"\r\n\r\n"
    created = wire.response_start()
    for data, count in ((b'{"content":[%b], "model" : "tiny"}\n' % tool, 1), (start + events + delta + created, 2)):
        rewriter = OuterModelName("Mine")
        got = b"".join(rewriter.feed(data[at : at + size]) for at in range(0, len(data), size)) + rewriter.close()
        assert got.count(b'"model":"Mine"') == count
        assert got.count(b'"tiny"') == 0
        assert (got.count(b"corolla"), got.count(b"beetle")) == (1, 1)


async def test_an_answer_nested_too_deeply_to_be_renamed_passes_as_it_is() -> None:
    deep = b'{"model":"theirs","x":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    async with fleet([response(200, deep)], response_model="client") as f:
        got = await post(f.url, {"model": "tiny", "max_tokens": 5}, path="/v1/messages")
        assert (got.status, got.body) == (200, deep)


async def test_the_models_name_is_the_clients_in_messages_and_responses() -> None:
    for p in (MESSAGES, RESPONSES):
        async with fleet(sse(p.whole), response_model="client") as f:
            got = await post(f.url, ASKED, path=p.path)
            assert got.body == p.whole  # the engine calls it so too
        other = p.whole.replace(b'"model":"tiny"', b'"model":"inner/name"')
        async with fleet(sse(other), response_model="client") as f:
            assert (await post(f.url, ASKED, path=p.path)).body == p.whole


async def test_a_last_event_without_its_blank_line_is_renamed_and_passed_on() -> None:
    last = b'event: message_stop\ndata: {"type":"message_stop","model":"inner/name"}'
    begun = MESSAGES.whole[: MESSAGES.whole.rindex(b"event: message_stop")]
    async with fleet(sse(begun + last), response_model="client") as f:
        got = await post(f.url, ASKED, path=MESSAGES.path)
        assert got.whole
        assert got.body.endswith(last.replace(b"inner/name", b"tiny"))


async def test_what_is_compressed_unasked_passes_as_it_is() -> None:
    packed = gzip.compress(b'{"model":"inner"}') + b'"model":"by chance"'
    script = response(200, packed, ("content-encoding", "gzip"))
    async with fleet([script], response_model="client") as f:
        got = await post(f.url, {"model": "tiny", "messages": []})
        assert (got.body, got.headers[b"content-length"]) == (packed, b"%d" % len(packed))


def test_a_frame_that_does_not_end_is_not_kept_for_ever() -> None:
    rename = OuterModelName("m")
    piece = b'data: {"model":"x","y":"' + b"x" * 2**20
    passed = [rename.feed(piece) for _ in range(20)]
    assert b"".join(passed) == piece * 20
    assert not rename._waiting


# Errors speak of models in their text.


def told(text: str) -> bytes:
    return b'{"error":{"message":"%b","type":"x","code":"c"}}' % text.encode()


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize("kind", [ModelName, OuterModelName])
def test_an_error_names_the_model_as_the_client_does_wherever_it_is_split(kind: type[NameRewriter], size: int) -> None:
    said = b'data: {"choices":[{"delta":{"content":"I am inner-1"}}],"error":null}\n\n'
    rest = b"data: [DONE]\n\n"
    data = said + b"data: " + told("Model inner-1 broke; not inner-1-mini. inner-1") + b"\n\n" + said + rest
    rewriter = kind("Mine")
    rewriter.theirs("inner-1")
    got = b"".join(rewriter.feed(data[at : at + size]) for at in range(0, len(data), size)) + rewriter.close()
    assert got == said + b"data: " + told("Model Mine broke; not inner-1-mini. Mine") + b"\n\n" + said + rest


def test_an_error_that_never_ends_is_held_to_a_bound_and_none_of_it_is_lost() -> None:
    rewriter = ModelName("Mine")
    rewriter.theirs("inner-1")
    data = b'data: {"error":{"message":"inner-1 ' + b"x" * 200_000
    parts = [rewriter.feed(data[at : at + 4096]) for at in range(0, len(data), 4096)]
    assert len(b"".join(parts)) >= len(data) - ERROR_BYTES_MAX - 4096
    assert b"".join(parts) + rewriter.close() == data.replace(b"inner-1", b"Mine")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize(
    "script",
    [
        [response(400, told("The model `inner-1` takes no pictures"))],
        [response(400, b'{"message":"inner-1 takes no pictures","code":"x"}')],
        [response(500, told("inner-1 broke"))],
        [response(200, told("inner-1 broke"))],
        sse(b"data: " + told("inner-1 broke") + b"\n\n"),
        sse(wire.message_start(), b"data: " + told("inner-1 broke") + b"\n\n"),
        sse(content("x"), b"data: " + told("inner-1 broke") + b"\n\n"),
    ],
    ids=["400", "native", "500", "200", "first event", "second event", "after content"],
)
async def test_no_error_shows_a_client_what_the_provider_calls_the_model(path: str, script: Any) -> None:
    async with ScriptedUpstream(script) as engine:
        given = {"id": "a", "url": engine.url, "kind": "none", "model_names": {"chat-large": "inner-1"}}
        async with replica(settings_of(given, response_model="client"), {"a": engine}) as f:
            for stream in (True, False):
                asked = {**ASKED, "model": "chat-large", "stream": stream, "max_tokens": 5}
                got = await post(f.url, asked, path=path)
                assert b"inner-1" not in got.body
                assert b"chat-large" in got.body
