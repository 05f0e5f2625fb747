"""Every endpoint keeps the same promises: one clean stream, its usage, an error in its own form. Over real sockets."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from evenload.router import fake_protocols as wire
from evenload.router.endpoints import ENDPOINTS
from evenload.router.fake_wire import (
    DONE,
    END,
    SSE_HEAD,
    Cut,
    Gate,
    Stall,
    chunk,
    content,
    error,
    error_frame,
    finish,
    frame,
    response,
    role,
    sse,
    usage,
)
from evenload.router.fakes import Got, ScriptedUpstream, post
from evenload.router.form_fields import FormError, form_fields
from evenload.router.limits import Limits
from evenload.router.model_name import OuterModelName
from evenload.router.proxy import FRAMING_BYTES
from evenload.router.shape import Shape
from evenload.router.upstream import Upstream
from evenload.settings import Settings
from tests.router.stage import BUSY, fleet, replica, stage, until

ASKED = {"model": "tiny", "stream": True, "input": "Hello", "prompt": "Hello", "messages": [], "max_tokens": 5}


@dataclass(frozen=True)
class Protocol:
    """One kind of stream: how it begins, goes on, ends, and tells an error before content."""

    path: str
    start: bytes
    text: bytes
    end: bytes
    bad: bytes
    bad_means: tuple[str, str] = ("saturated", "engine_busy")

    @property
    def whole(self) -> bytes:
        return self.start + self.text + self.text + self.end


def _text(text: str) -> bytes:
    return frame({"choices": [{"index": 0, "text": text, "finish_reason": None}]})


CHAT = Protocol(
    "/v1/chat/completions", role(), content("x"), finish() + usage(11, 2) + DONE, error_frame(503, BUSY) + DONE
)
COMPLETIONS = Protocol(
    "/v1/completions",
    b": ping\n\n",
    _text("x"),
    frame({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}) + usage(11, 2) + DONE,
    error_frame(503, BUSY) + DONE,
)
MESSAGES = Protocol(
    "/v1/messages",
    wire.message_start(),
    wire.message_text("x"),
    wire.message_end(2),
    wire.message_error("overloaded_error", "Overloaded"),
)
RESPONSES = Protocol(
    "/v1/responses",
    wire.response_start(),
    wire.response_text("x"),
    wire.response_end("xx", 2),
    wire.response_failed("server_error", "boom"),
    ("stream_error", "error_event"),
)
SPEECH = Protocol(
    "/v1/audio/speech",
    b": ping\n\n",
    wire.event("speech.audio.delta", audio="AAAA"),
    wire.event("speech.audio.done", usage={"input_tokens": 11, "output_tokens": 2}),
    wire.event("error", error={"type": "server_error", "code": 503, "message": BUSY}),
)
PROTOCOLS = [CHAT, COMPLETIONS, MESSAGES, RESPONSES, SPEECH]
each_protocol = pytest.mark.parametrize("p", PROTOCOLS, ids=lambda p: p.path)


def last_event(got: Got) -> tuple[bytes | None, Any]:
    """Return name and data of the last event."""
    lines = got.body.rstrip(b"\n").rpartition(b"\n\n")[2].split(b"\n")
    name = lines[0][7:] if lines[0].startswith(b"event: ") else None
    return name, json.loads(lines[-1].removeprefix(b"data: "))


@each_protocol
async def test_a_stream_passes_byte_for_byte_with_its_first_content_timed_and_its_usage_taken(p: Protocol) -> None:
    async with stage([SSE_HEAD, chunk(p.start), Stall(0.05), chunk(p.text), chunk(p.text), chunk(p.end), END]) as s:
        got = await post(s.url, ASKED, path=p.path)
        assert (got.status, got.body, got.whole) == (200, p.whole, True)
        assert s.ends == [("a", "ok", "")]
        lease = s.dispatcher.leases[0]
        assert lease.first_token_ms is not None
        assert lease.first_token_ms >= 50  # not the beginning
        assert lease.end["output_tokens"] == 2
        sent = len(json.dumps(ASKED)) - FRAMING_BYTES
        assert s.dispatcher.learned == [("tiny", sent, 11)]
        assert s.dispatcher.asks[0].endpoint == p.path.removeprefix("/v1/")


@each_protocol
@pytest.mark.parametrize("begun", [False, True], ids=["at once", "after the beginning"])
async def test_an_error_before_content_is_made_good_by_another_instance(p: Protocol, *, begun: bool) -> None:
    bad = sse(p.start, p.bad) if begun else sse(p.bad)
    async with stage(bad, sse(p.whole)) as s:
        got = await post(s.url, ASKED, path=p.path)
        assert (got.status, got.body) == (200, p.whole)
        assert got.headers[b"x-evenload-instance"] == b"b"
        assert s.ends == [("a", *p.bad_means), ("b", "ok", "")]
        assert s.dispatcher.leases[0].first_token_ms is None


@each_protocol
async def test_a_stream_that_ends_before_content_without_its_last_event_is_tried_elsewhere(p: Protocol) -> None:
    async with stage(sse(p.start), [*sse(p.start, end=False), Cut()], sse(p.whole)) as s:
        assert (await post(s.url, ASKED, path=p.path)).body == p.whole
        assert s.ends == [("a", "upstream_cut", "eof"), ("b", "upstream_cut", "eof"), ("c", "ok", "")]


@each_protocol
@pytest.mark.parametrize("ends", [True, False], ids=["in order", "by a lost connection"])
async def test_a_stream_cut_after_content_ends_with_an_error_in_its_own_form(p: Protocol, *, ends: bool) -> None:
    cut = sse(p.start, p.text) if ends else [*sse(p.start, p.text, end=False), Stall(0.02), Cut()]
    async with stage(cut, sse(p.whole)) as s:
        got = await post(s.url, ASKED, (b"x-request-id", b"mine-1"), path=p.path)
        assert got.body.startswith(p.start + p.text)
        assert got.whole
        name, told = last_event(got)
        assert told["error"]["code"] == "eof"
        assert told["request_id"] == "mine-1"
        assert s.ends == [("a", "upstream_cut", "eof")]  # never retried
        assert s.dispatcher.leases[0].end["output_tokens"] == 1
    if p is MESSAGES:
        assert (name, told["type"], told["error"]["type"]) == (b"error", "error", "api_error")
    elif p is RESPONSES:
        assert (name, told["type"], told["code"], told["param"]) == (b"error", "error", "eof", None)
        assert told["sequence_number"] == 4
    else:
        assert (name, set(told)) == (None, {"error", "request_id"})


@each_protocol
async def test_a_client_that_leaves_stops_the_engine_and_blames_nobody(p: Protocol) -> None:
    async with stage([SSE_HEAD, chunk(p.start + p.text), Stall()]) as s:
        client = Upstream(s.url)
        head = [(b"content-type", b"application/json")]
        got = await client.request("POST", p.path.encode(), head, json.dumps(ASKED).encode())
        assert await got.read_chunk()
        got.release()
        await until(lambda: s.engines[0].aborts == 1)
        await until(lambda: s.ends == [("a", "client_gone", "client_left")])
        client.close()


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/messages", wire.message_error("api_error", "boom")),
        ("/v1/responses", wire.response_failed("server_error", "x")),
    ],
)
async def test_an_upstreams_own_error_after_content_passes_and_is_a_failure(path: str, last: bytes) -> None:
    start = wire.message_start() + wire.message_text("x") if "messages" in path else wire.response_start()
    start += b"" if "messages" in path else wire.response_text("x")
    async with stage(sse(start, last)) as s:
        assert (await post(s.url, ASKED, path=path)).body == start + last
        assert s.ends == [("a", "stream_error", "error_event")]


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ("/v1/messages", wire.message_error("invalid_request_error", "max_tokens: too large")),
        ("/v1/responses", wire.response_failed("invalid_prompt", "no")),
        ("/v1/responses", wire.event("error", code="invalid_prompt", message="no", param=None, sequence_number=0)),
    ],
)
async def test_a_clients_error_inside_a_stream_is_passed_on_and_not_retried(path: str, bad: bytes) -> None:
    async with stage(sse(bad), sse(bad)) as s:
        assert (await post(s.url, ASKED, path=path)).body == bad
        assert s.ends == [("a", "rejected", "http_400")]


@pytest.mark.parametrize("code", ["invalid_prompt", "invalid_image_url", "image_too_large"])
async def test_a_clients_error_inside_a_response_that_is_no_stream_is_passed_on_and_not_retried(code: str) -> None:
    failed = {"object": "response", "status": "failed", "error": {"code": code, "message": "no"}, "output": []}
    bad = json.dumps(failed).encode()
    async with stage([response(200, bad)], [response(200, bad)]) as s:
        got = await post(s.url, {"model": "tiny", "input": "x"}, path="/v1/responses")
        assert (got.status, got.body) == (200, bad)
        assert s.ends == [("a", "rejected", "http_400")]


@pytest.mark.parametrize("nothing", ['""', "{}", "false", "0", "null"])
async def test_an_error_that_says_nothing_is_none(nothing: str) -> None:
    whole = b'{"choices":[{"index":0,"message":{"content":"x"}}],"error":%b}' % nothing.encode()
    chunks = role() + frame({"choices": [{"index": 0, "delta": {"content": "x"}}], "error": json.loads(nothing)})
    chunks += finish() + DONE
    async with stage([response(200, whole)]) as s:
        assert (await post(s.url, {"model": "tiny", "messages": []})).body == whole
        assert s.ends == [("a", "ok", "")]
    async with stage(sse(chunks)) as s:
        assert (await post(s.url, ASKED)).body == chunks
        assert s.ends == [("a", "ok", "")]


async def test_an_incomplete_response_is_an_answer() -> None:
    body = wire.response_start() + wire.response_text("x") + wire.response_end("x", 1, status="incomplete")
    async with stage(sse(body)) as s:
        assert (await post(s.url, ASKED, path="/v1/responses")).body == body
        assert s.ends == [("a", "ok", "")]


# Answers that are no stream.


@pytest.mark.parametrize("path", sorted(path for path, one in ENDPOINTS.items() if not one.multipart))
async def test_every_path_passes_its_request_and_answer_byte_for_byte(path: str) -> None:
    body = b'{ "x":1, "usage":{"input_tokens":11,"cache_read_input_tokens":4,"output_tokens":3}}'
    if "chat" in path:
        body = b'{ "x":1, "usage":{"prompt_tokens":15,"completion_tokens":3}}'
    sent = b'{"model":"tiny",  "documents":["a"], "padding": "' + b"x" * 200 + b'"}'
    async with stage([response(200, body)]) as s:
        got = await post(s.url, sent, path=path)
        assert (got.status, got.body) == (200, body)
        assert (s.engines[0].requests[0].path, s.engines[0].requests[0].body) == (path.encode(), sent)
        assert s.ends == [("a", "ok", "")]
        assert s.dispatcher.leases[0].end["output_tokens"] == 3
        ask = s.dispatcher.asks[0]
        assert ask.endpoint == ENDPOINTS[path].name
        if ENDPOINTS[path].reads:
            assert ask.prompt_tokens == (len(sent) - FRAMING_BYTES) // 4
            assert s.dispatcher.learned == [("tiny", len(sent) - FRAMING_BYTES, 15)]
        else:
            assert (ask.prompt_tokens, s.dispatcher.learned) == (1, [])


@pytest.mark.parametrize("path", ["/v1/rerank", "/tokenize", "/v1/messages/count_tokens", "/v1/responses"])
async def test_a_failed_answer_is_made_good_by_another_instance(path: str) -> None:
    async with stage([error(503, BUSY)], [response(200, b"{}")]) as s:
        assert (await post(s.url, {"model": "tiny"}, path=path)).body == b"{}"
        assert s.ends == [("a", "saturated", "engine_busy"), ("b", "ok", "")]


async def test_a_response_that_failed_inside_a_200_is_tried_elsewhere() -> None:
    failed = response(200, b'{"status":"failed","error":{"code":"server_error","message":"boom"}}')
    good = response(200, b'{"status":"completed","error":null}')
    async with stage([failed], [good]) as s:
        assert (await post(s.url, {"model": "tiny"}, path="/v1/responses")).body.startswith(b'{"status":"completed"')
        assert s.ends[0] == ("a", "stream_error", "error_event")


@pytest.mark.parametrize(
    ("limit", "told"), [("max_tokens", 7), ("max_completion_tokens", 7), ("max_output_tokens", 7), ("top_n", None)]
)
async def test_the_limit_of_the_answer_has_many_names(limit: str, told: int | None) -> None:
    async with stage([response(200, b"{}")]) as s:
        await post(s.url, {"model": "m", limit: 7}, path="/v1/responses")
        assert s.dispatcher.asks[0].max_tokens == told


@pytest.mark.parametrize(("limit", "kept"), [("-1", 0), ("7.9", 7), ("1e300", 2**31 - 1), ("1" * 30, 2**31 - 1)])
async def test_a_limit_of_the_answer_that_no_record_can_hold_is_cut(limit: str, kept: int) -> None:
    async with stage([response(200, b"{}")]) as s:
        await post(s.url, b'{"model":"m","max_tokens":%b}' % limit.encode())
        assert s.dispatcher.asks[0].max_tokens == kept


async def test_a_response_in_the_background_is_refused_for_nobody_could_fetch_it() -> None:
    async with stage([response(200, b"{}")]) as s:
        got = await post(s.url, {"model": "m", "background": True}, path="/v1/responses")
        assert (got.status, got.error["code"], got.error["param"]) == (400, "unsupported_value", "background")
        assert not s.dispatcher.asks


@pytest.mark.parametrize("asked", [True, "true", 1, "transparent"])
async def test_whatever_is_not_no_is_a_background(asked: Any) -> None:
    async with stage([response(200, b"{}")]) as s:
        got = await post(s.url, {"model": "m", "background": asked}, path="/v1/responses")
        assert (got.status, got.error["param"]) == (400, "background")


@pytest.mark.parametrize("path", [path for path, one in ENDPOINTS.items() if not (one.multipart or one.stored)])
@pytest.mark.parametrize("background", ["transparent", True, {"color": "red"}])
async def test_a_background_is_of_responses_only(path: str, background: Any) -> None:
    sent = json.dumps({"model": "tiny", "background": background}).encode()
    async with stage([response(200, b"{}")]) as s:
        assert (await post(s.url, sent, path=path)).status == 200
        assert s.engines[0].requests[0].body == sent


async def test_responses_that_are_told_not_to_be_in_the_background_pass() -> None:
    async with stage([response(200, b"{}")]) as s:
        for no in (False, None):
            assert (await post(s.url, {"model": "tiny", "background": no}, path="/v1/responses")).status == 200


async def test_speech_flows_through_as_it_comes() -> None:
    go_on = asyncio.Event()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n"
    async with stage([head, chunk(b"ID3\x00"), Gate(go_on), chunk(b"\xff"), END]) as s:
        client = Upstream(s.url)
        body = json.dumps({"model": "tiny", "input": "Hello", "voice": "a"}).encode()
        got = await client.request("POST", b"/v1/audio/speech", [(b"content-type", b"application/json")], body)
        assert await got.read_chunk() == b"ID3\x00"
        go_on.set()
        assert await got.read_chunk() == b"\xff"
        assert await got.read_chunk() == b""
        assert dict(got.headers)[b"content-type"] == b"audio/mpeg"
        got.release()
        client.close()
        await until(lambda: s.ends == [("a", "ok", "")])


async def test_speech_that_is_cut_before_its_first_byte_is_asked_for_elsewhere() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n"
    async with stage([head, Cut()], [response(200, b"ID3", content_type="audio/mpeg")]) as s:
        assert (await post(s.url, {"model": "tiny"}, path="/v1/audio/speech")).body == b"ID3"
        assert s.ends == [("a", "upstream_cut", "eof"), ("b", "ok", "")]


# Forms.


def form(*parts: tuple[str, bytes]) -> bytes:
    """Return a form with the boundary XX."""
    body = b"".join(
        b'--XX\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)
        for name, value in parts
    )
    return body + b"--XX--\r\n"


FORM = (b"content-type", b"multipart/form-data; boundary=XX")


async def test_a_form_passes_byte_for_byte_and_its_file_says_nothing_about_tokens() -> None:
    sent = form(("file", b"\x00--X\r\n" * 100_000), ("model", b"tiny"), ("response_format", b"json"))
    answer = b'{"text":"Hello","usage":{"type":"tokens","input_tokens":11,"output_tokens":2}}'
    async with stage([error(503, BUSY)], [response(200, answer)]) as s:
        got = await post(s.url, sent, FORM, path="/v1/audio/transcriptions")
        assert (got.status, got.body) == (200, answer)
        assert [engine.requests[0].body == sent for engine in s.engines] == [True, True]
        assert s.engines[1].requests[0].headers[b"content-type"] == FORM[1]
        ask = s.dispatcher.asks[0]
        assert (ask.model, ask.prompt_tokens, ask.stream) == ("tiny", 1, False)
        assert s.dispatcher.learned == []


async def test_a_transcription_can_be_a_stream_of_named_events_or_of_chunks() -> None:
    named = wire.event("transcript.text.delta", delta="x") + wire.event("transcript.text.done", text="x")
    chunks = frame({"object": "transcription.chunk", "choices": [{"index": 0, "delta": {"content": "x"}}]})
    chunks += finish() + DONE
    sent = form(("model", b"tiny"), ("stream", b"true"))
    for body in (named, chunks):
        cut = body[: body.index(b"\n\n") + 2]
        for whole, ends in ((body, ("a", "ok", "")), (cut, ("a", "upstream_cut", "eof"))):
            async with stage(sse(whole)) as s:
                got = await post(s.url, sent, FORM, path="/v1/audio/transcriptions")
                assert s.dispatcher.asks[0].stream
                assert got.body.startswith(whole)
                assert s.ends == [ends]
                assert s.dispatcher.leases[0].first_token_ms is not None


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{}", 400, "invalid_form"),
        (form(("file", b"x")), 400, "invalid_value"),
        (form(("model", b"x" * 2000)), 400, "invalid_form"),
        (form(("file", b"x" * 3000), ("model", b"tiny")), 413, "request_too_large"),
    ],
)
async def test_forms_that_cannot_be_served_are_refused(body: bytes, status: int, code: str) -> None:
    async with stage([response(200, b"{}")], limits=Limits(body_bytes_max=2900)) as s:
        got = await post(s.url, body, FORM, path="/v1/audio/translations")
        assert (got.status, got.error["code"]) == (status, code)
        assert not s.dispatcher.asks


async def test_a_form_without_its_header_is_refused() -> None:
    async with stage([response(200, b"{}")]) as s:
        got = await post(s.url, form(("model", b"tiny")), path="/v1/audio/translations")  # says it is JSON
        assert (got.status, got.error["code"]) == (400, "invalid_form")


async def test_a_forms_model_goes_upstream_by_the_instances_own_name() -> None:
    sent = form(("model", b"tiny"), ("file", b"tiny" * 1000))
    shaped = Shape(names={"tiny": "whisper-1"}).apply(b"/v1/audio/transcriptions", [FORM], sent)
    assert shaped == (b"/v1/audio/transcriptions", [FORM], form(("model", b"whisper-1"), ("file", b"tiny" * 1000)))


OTHER_NAMES = {"tiny": "theirs"}


async def renamed(path: str, body: bytes, *headers: tuple[bytes, bytes], **instance: Any) -> tuple[int, list[Any]]:
    """The status of a request to an instance with names of its own, and what it got."""
    async with ScriptedUpstream([response(200, b"{}")]) as engine:
        settings = Settings.model_validate(
            {
                "kafka": {"bootstrap": "127.0.0.1:1"},
                "pools": [
                    {"name": "p", "models": ["tiny"], "instances": [{"url": engine.url, "kind": "none", **instance}]}
                ],
            }
        )
        async with replica(settings, {"a": engine}, {"KEY": "k"}) as f:
            got = await post(f.url, body, *headers, path=path)
        return got.status, engine.requests


@pytest.mark.parametrize(
    "instance",
    [{"model_names": OTHER_NAMES}, {"preset": "azure-deployments", "api_key_env": "KEY", "model_names": OTHER_NAMES}],
    ids=["names", "deployments"],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/messages"])
async def test_json_that_says_it_is_a_form_is_json(path: str, instance: dict[str, Any]) -> None:
    status, (seen,) = await renamed(path, b'{"model":"tiny"}', FORM, **instance)
    assert (status, seen.body) == (200, b'{"model":"theirs"}')
    assert (b"/deployments/theirs/" in seen.path) == ("preset" in instance)


@pytest.mark.parametrize("path", [path for path, one in ENDPOINTS.items() if one.multipart])
@pytest.mark.parametrize(
    "headers",
    [
        (FORM, (b"connection", b"content-type")),
        (FORM, (b"connection", b"Content-Type, close")),
        ((b"content-type", b"text/plain"), FORM),
        ((b"content-type", b"multipart/form-data"), FORM),
    ],
)
async def test_a_form_whose_content_type_does_not_go_upstream_is_refused(path: str, headers: Any) -> None:
    status, seen = await renamed(path, form(("model", b"tiny")), *headers, model_names=OTHER_NAMES)
    assert (status, seen) == (400, [])


async def test_the_first_content_type_counts_both_here_and_upstream() -> None:
    other = (b"content-type", b"text/plain")
    status, (seen,) = await renamed(
        "/v1/audio/translations", form(("model", b"tiny")), FORM, other, model_names=OTHER_NAMES
    )
    assert (status, seen.body) == (200, form(("model", b"theirs")))


@pytest.mark.parametrize(
    "cut", [b"--XX\r\n", b"--XX\r\ncontent-disposition: form-data\r\n\r\nx", b"x--XX--", form(*[("a", b"")] * 65)]
)
def test_broken_forms_are_told_from_whole_ones(cut: bytes) -> None:
    with pytest.raises(FormError):
        form_fields(FORM[1], cut, ("model",))


def test_only_a_fields_own_name_counts_and_the_last_of_two() -> None:
    tricky = b'--XX\r\nContent-Disposition: form-data; name="file"; filename="; name=\\"model\\""\r\n\r\nevil\r\n'
    body = b"preamble\r\n" + tricky + form(("model", b""), ("stream", b"true"), ("model", b"m\xc3\xa9"))
    assert form_fields(FORM[1], body, ("model", "stream")) == {"model": "mé", "stream": "true"}


# The model's name in answers.


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
