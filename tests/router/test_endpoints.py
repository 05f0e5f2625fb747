"""Every endpoint keeps the same promises: one clean stream, its usage, an error in its own form. Over real sockets."""

import json
from typing import Any

import pytest

from evenload.router import fake_protocols as wire
from evenload.router.fake_wire import DONE, END, SSE_HEAD, Cut, Stall, chunk, finish, frame, response, role, sse
from evenload.router.fakes import Got, post
from evenload.router.proxy import FRAMING_BYTES
from evenload.router.upstream import Upstream
from tests.router.protocols import ASKED, MESSAGES, RESPONSES, Protocol, each_protocol
from tests.router.stage import stage, until


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
