"""The model's name in answers is the client's where configured, and foreign JSON keeps its own."""

import pytest

from evenload.router import fake_protocols as wire
from evenload.router.fake_wire import response, sse
from evenload.router.fakes import post
from evenload.router.model_name import OuterModelName
from tests.router.protocols import ASKED, MESSAGES, RESPONSES
from tests.router.stage import fleet


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


def test_a_frame_that_does_not_end_is_not_kept_for_ever() -> None:
    rename = OuterModelName("m")
    piece = b'data: {"model":"x","y":"' + b"x" * 2**20
    passed = [rename.feed(piece) for _ in range(20)]
    assert b"".join(passed) == piece * 20
    assert not rename._waiting
