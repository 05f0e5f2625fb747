"""The data plane end to end, a real server before scripted upstreams: what passes, and what is refused."""

import asyncio
import json

import pytest

from evenload.router.fake_wire import DONE, END, SSE_HEAD, Stall, Trickle, chunk, finish, frame, response, role, sse
from evenload.router.fakes import post
from evenload.router.limits import Limits
from evenload.router.proxy import FRAMING_BYTES
from tests.router.stage import GOOD, GOOD_BODY, JSON_ANSWER, PLAIN, STREAM, stage

# Happy paths.


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
async def test_an_answer_passes_byte_for_byte(path: str) -> None:
    async with stage([response(200, JSON_ANSWER, ("x-secret", "1"))]) as s:
        sent = b' {"stream":false ,"model":"tiny",  "prompt":"\\u00e9"}\n'
        got = await post(s.url, sent, path=path)
        assert (got.status, got.body) == (200, JSON_ANSWER)
        assert s.engines[0].requests[0].body == sent
        assert s.engines[0].requests[0].path == path.encode()
        assert got.headers[b"x-evenload-instance"] == b"a"
        assert b"x-secret" not in got.headers
        assert s.ends == [("a", "ok", "")]
        lease = s.dispatcher.leases[0]
        assert (lease.end["status"], lease.end["output_tokens"], lease.end["ttft_ms"]) == (200, 4, None)
        assert s.dispatcher.learned == [("tiny", len(sent) - FRAMING_BYTES if len(sent) > FRAMING_BYTES else 1, 11)]


async def test_a_stream_passes_byte_for_byte_and_its_first_token_is_timed() -> None:
    async with stage([SSE_HEAD, chunk(role()), Stall(0.05), *GOOD[2:]]) as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.body, got.whole) == (200, GOOD_BODY, True)
        assert got.headers[b"content-type"] == b"text/event-stream; charset=utf-8"
        lease = s.dispatcher.leases[0]
        assert s.ends == [("a", "ok", "")]
        assert lease.end["output_tokens"] == 2
        assert lease.first_token_ms == lease.end["ttft_ms"]
        assert lease.first_token_ms is not None
        assert lease.first_token_ms >= 50
        assert s.dispatcher.asks[0].stream


async def test_a_stream_split_at_every_byte_passes() -> None:
    async with stage([Trickle(b"".join(step for step in GOOD if isinstance(step, bytes)), 1)]) as s:
        assert (await post(s.url, STREAM)).body == GOOD_BODY
        assert s.ends == [("a", "ok", "")]


async def test_a_long_answer_is_passed_on_without_being_held() -> None:
    body = b'{"data":[' + b"1," * 200_000 + b"1]}"
    async with stage([response(200, body)]) as s:
        got = await post(s.url, PLAIN, path="/v1/embeddings")
        assert got.body == body
        assert got.headers[b"content-length"] == str(len(body)).encode()
        assert s.ends == [("a", "ok", "")]


async def test_an_empty_answer_with_a_finish_reason_is_an_answer() -> None:
    async with stage(sse(role(), finish(), DONE)) as s:
        assert (await post(s.url, STREAM)).body == role() + finish() + DONE
        assert s.ends == [("a", "ok", "")]
        assert s.dispatcher.leases[0].end["ttft_ms"] is None


async def test_a_compressed_stream_passes_unseen() -> None:
    head = SSE_HEAD.replace(b"server:", b"content-encoding: gzip\r\nserver:")
    async with stage([head, chunk(b"\x1f\x8b\x00"), END]) as s:
        got = await post(s.url, STREAM)
        assert (got.body, got.headers[b"content-encoding"]) == (b"\x1f\x8b\x00", b"gzip")
        assert s.engines[0].requests[0].headers[b"accept-encoding"] == b"identity"


async def test_everything_else_goes_to_the_inner_app() -> None:
    async with stage(GOOD) as s:
        assert (await post(s.url, {}, path="/fleet")).body == b"/fleet"
        assert (await post(s.url, {}, method="GET")).status == 299
        assert not s.dispatcher.leases


async def test_the_request_id_is_kept_or_made_and_goes_both_ways() -> None:
    async with stage(GOOD) as s:
        got = await post(s.url, STREAM, (b"x-request-id", b"mine-1"), (b"authorization", b"Bearer sk"))
        assert got.headers[b"x-request-id"] == b"mine-1"
        assert s.engines[0].requests[0].headers[b"x-request-id"] == b"mine-1"
        assert b"authorization" not in s.engines[0].requests[0].headers
        made = (await post(s.url, STREAM)).headers[b"x-request-id"]
        assert s.dispatcher.asks[1].request_id.encode() == made


async def test_what_routing_is_told() -> None:
    async with stage([response(200, b"{}")]) as s:
        body = {"model": "m", "prompt": "x" * 4000, "max_tokens": 7}
        await post(s.url, body, path="/v1/completions")
        ask = s.dispatcher.asks[0]
        assert (ask.model, ask.stream, ask.max_tokens, ask.endpoint) == ("m", False, 7, "completions")
        assert abs(ask.prompt_tokens - 1000) < 25


async def test_the_model_named_in_a_frame_is_not_touched() -> None:
    odd = frame({"model": "another", "choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]})
    async with stage(sse(odd)) as s:
        assert (await post(s.url, STREAM)).body == odd


async def test_each_test_stands_on_the_server_that_it_names(request: pytest.FixtureRequest) -> None:
    async with stage(GOOD) as s:
        got = await post(s.url, b"", path="/elsewhere", method="GET")
    assert got.headers[b"x-served-by"].decode() == request.node.callspec.params["http_server"]


# Bad requests.


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"{", "invalid_json", None),
        (b'{"model":"m","x":' + b"[" * 100_000, "invalid_json", None),
        (b'{"model":"\xff"}', "invalid_json", None),
        (b"[]", "invalid_value", None),
        (b"{}", "invalid_value", "model"),
        (b'{"model":5}', "invalid_value", "model"),
        (b'{"model":"m","stream":"yes"}', "invalid_value", "stream"),
    ],
)
async def test_a_bad_body_is_a_400_that_says_what(body: bytes, code: str, param: str | None) -> None:
    async with stage(GOOD) as s:
        got = await post(s.url, body)
        assert (got.status, got.error["code"], got.error["param"]) == (400, code, param)
        assert not s.dispatcher.leases


async def test_a_body_at_the_limit_passes_and_one_byte_more_is_a_413() -> None:
    body = json.dumps({"model": "m", "prompt": "x" * 200_000}).encode()
    async with stage([response(200, b"{}")], limits=Limits(body_bytes_max=len(body))) as s:
        assert (await post(s.url, body)).status == 200
        got = await post(s.url, body + b" ")
        assert (got.status, got.error["code"]) == (413, "request_too_large")


async def test_a_chunked_body_over_the_limit_is_a_413_before_it_is_complete() -> None:
    async with stage(GOOD, limits=Limits(body_bytes_max=1000)) as s:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(s.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(chunk(b"x" * 600) + chunk(b"x" * 600))
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()
