"""What passes through untouched, over real sockets: text that looks like trouble, headers, a client's options."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.router.fake_wire import (
    DONE,
    END,
    SSE_HEAD,
    Stall,
    chunk,
    content,
    finish,
    frame,
    response,
    role,
    sse,
)
from evenload.router.fakes import post
from evenload.router.model_name import ModelName
from evenload.router.upstream import Upstream
from tests.router.stage import GOOD, GOOD_BODY, JSON_ANSWER, PLAIN, STREAM, events, fleet, stage


@pytest.mark.parametrize(
    "text", ['data: {"error": {"code": 500}}', "event: error", '{"error":{"message":"boom"}}', "[DONE]", "error"]
)
async def test_text_that_speaks_of_errors_is_a_success(text: str) -> None:
    plain = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).encode()
    async with stage([sse(role(), content(text), finish(), DONE), [response(200, plain)]]) as s:
        assert (await post(s.url, STREAM)).body == role() + content(text) + finish() + DONE
        assert (await post(s.url, PLAIN)).body == plain
        assert s.ends == [("a", "ok", ""), ("a", "ok", "")]


async def test_only_listed_headers_pass_either_way() -> None:
    sent = [
        (b"authorization", b"Bearer sk-client"),
        (b"api-key", b"sk-client"),
        (b"x-api-key", b"sk-client"),
        (b"cookie", b"a=b"),
        (b"connection", b"close, tracestate"),
        (b"tracestate", b"named by connection"),
        (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        (b"x-forwarded-for", b"10.0.0.1"),
        (b"te", b"trailers"),
        (b"proxy-authorization", b"Basic x"),
    ]
    back = [
        ("set-cookie", "a=b"),
        ("server", "engine"),
        ("x-internal", "10.1.2.3"),
        ("keep-alive", "timeout=5"),
        ("proxy-authenticate", "Basic"),
        ("connection", "vary"),
        ("vary", "Origin"),
        ("x-ratelimit-remaining-requests", "7"),
        ("openai-organization", "acme"),
        ("openai-processing-ms", "7"),
    ]
    async with stage([response(200, JSON_ANSWER, *back)]) as s:
        got = await post(s.url, PLAIN, *sent)
        seen = s.engines[0].requests[0].headers
        assert set(seen) == {
            b"host", b"content-length", b"content-type", b"traceparent", b"accept-encoding", b"x-request-id",
        }  # fmt: skip
        assert b"sk-client" not in b" ".join(seen.values())
        assert set(got.headers) - {b"date", b"server"} == {
            b"content-type", b"content-length", b"openai-processing-ms",
            b"x-request-id", b"x-evenload-instance", b"connection",
        }  # fmt: skip
        assert got.headers.get(b"server") != b"engine"
        assert got.headers[b"connection"] == b"close"  # uvicorn's own word to the client, which asked for it


async def test_without_stream_options_nothing_is_added_and_tokens_are_counted_from_content() -> None:
    bare = sse(role(), content("Hel"), content("lo"), finish(), DONE)
    async with stage([bare, GOOD]) as s:
        sent = json.dumps(STREAM).encode()
        assert (await post(s.url, sent)).body == role() + content("Hel") + content("lo") + finish() + DONE
        assert s.engines[0].requests[0].body == sent
        asked = json.dumps({**STREAM, "stream_options": {"include_usage": True}}).encode()
        assert (await post(s.url, asked)).body == GOOD_BODY  # the usage frame is the client's, who asked for it
        assert s.engines[0].requests[1].body == asked
        assert [lease.end["output_tokens"] for lease in s.dispatcher.leases] == [2, 2]


@pytest.mark.parametrize("asked", [1, 2])
async def test_a_stream_of_two_choices_that_is_cut_after_the_first_has_finished_is_a_cut_one(asked: int) -> None:
    def of(index: int, reason: str | None = None) -> bytes:
        choice = {"index": index, "delta": {"content": "x"}, "finish_reason": reason}
        return frame({"object": "chat.completion.chunk", "choices": [choice]})

    seen = of(0) + of(1) if asked == 1 else of(0)
    script = [SSE_HEAD, chunk(seen), Stall(0.02), chunk(of(0, "stop")), END]
    async with stage(script) as s:
        got = await post(s.url, {**STREAM, "n": asked})
        assert "error" in events(got)[-1]
        assert s.ends == [("a", "upstream_cut", "eof")]


async def test_frames_split_over_chunks_and_segments_are_seen_as_one() -> None:
    whole = role() + content("Hel") + finish() + DONE
    pieces = [chunk(whole[start : start + 7]) for start in range(0, len(whole), 7)]
    async with stage([sse()[0], *pieces, sse()[-1]]) as s:
        client = Upstream(s.url)
        answer = await client.request("POST", b"/v1/chat/completions", [], json.dumps(STREAM).encode())
        assert await answer.read_all(10_000) == whole
        answer.release()
        client.close()
        assert s.ends == [("a", "ok", "")]
        assert s.dispatcher.leases[0].first_token_ms is not None


async def test_an_engine_gets_its_own_credential_and_never_the_clients() -> None:
    mine = (b"authorization", b"Bearer sk-client")
    async with fleet(GOOD, key="sk-engine") as keyed, fleet(GOOD) as bare:
        await post(keyed.url, STREAM, mine)
        await post(bare.url, STREAM, mine)
        assert keyed.engines["a"].requests[0].headers[b"authorization"] == b"Bearer sk-engine"
        assert b"authorization" not in bare.engines["a"].requests[0].headers


# The model's name in answers.

ALIAS = "my alias"


def named(model: str) -> tuple[bytes, bytes, bytes]:
    """A stream, an answer and a long answer that name a model at several depths, and speak of models too."""
    text = json.dumps('a "model": "of text"')
    head = f'{{"id":"1","model" : "{model}","choices":[{{"index":0,"delta":{{"content":{text}}},'
    frames = [f'data: {head}"finish_reason":null}}]}}\n\n', f'data: {head}"finish_reason":"stop"}}]}}\n\n']
    nested = f'{{"model":"{model}","response":{{"model":"{model}"}},"choices":[{{"text":{text}}}]}}'
    long = f'{{"data":[{"1," * 60_000}1],"model":"{model}"}}'
    return "".join(frames).encode(), nested.encode(), long.encode()


@pytest.mark.parametrize("size", [1, 13, 100_000])
async def test_the_models_name_is_the_clients_in_answers_and_in_every_frame_where_configured(size: int) -> None:
    stream, nested, long = named("backend/secret-7b")
    pieces = [chunk(stream[start : start + size]) for start in range(0, len(stream), size)]
    scripts = [[SSE_HEAD, *pieces, chunk(DONE), END], [response(200, nested)], [response(200, long)]]
    async with fleet(scripts, models=(ALIAS,), response_model="client") as f:
        for sent, script in zip(named("backend/secret-7b"), scripts, strict=True):
            body = {**(STREAM if script is scripts[0] else PLAIN), "model": ALIAS}
            got = await post(f.url, body)
            assert got.whole
            assert b"secret" not in got.body
            expected = sent + (DONE if script is scripts[0] else b"")
            for form in (b'"model" : "backend/secret-7b"', b'"model":"backend/secret-7b"'):
                expected = expected.replace(form, b'"model":"my alias"')
            assert got.body == expected
        assert await f.outcomes("a") == {"ok": 3}


async def test_the_models_name_is_the_upstreams_by_default() -> None:
    stream, nested, _ = named("backend")
    async with fleet([[SSE_HEAD, chunk(stream), END], [response(200, nested)]], models=(ALIAS,)) as f:
        assert (await post(f.url, {**STREAM, "model": ALIAS})).body == stream
        assert (await post(f.url, {**PLAIN, "model": ALIAS})).body == nested


@given(st.text(max_size=30), st.integers(1, 40))
def test_a_name_is_found_wherever_it_is_split(name: str, size: int) -> None:
    data = json.dumps({"a": 'x "model": "y"', "model": name, "b": ["model", 1], "model ": "z"}).encode() * 2
    rename = ModelName("m")
    parts = [rename.feed(data[start : start + size]) for start in range(0, len(data), size)]
    found = b"".join(parts) + rename.close()
    assert found == data.replace(b'"model": ' + json.dumps(name).encode(), b'"model":"m"')


def test_what_waits_for_the_end_of_a_name_is_bounded() -> None:
    rename = ModelName("m")
    passed = rename.feed(b'{"model":"' + b"x" * 10_000)
    assert len(passed) > 8_000
    assert passed + rename.close() == b'{"model":"' + b"x" * 10_000
