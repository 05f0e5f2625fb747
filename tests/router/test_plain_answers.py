"""Requests and answers that are no stream of events, at every endpoint; and what is read of them. Over real sockets."""

import asyncio
import json
from typing import Any

import pytest

from evenload.router.endpoints import ENDPOINTS
from evenload.router.fake_wire import END, Cut, Gate, chunk, error, response
from evenload.router.fakes import post
from evenload.router.proxy import FRAMING_BYTES
from evenload.router.upstream import Upstream
from tests.router.stage import BUSY, stage, until


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
