"""The data plane end to end: a real uvicorn on one side, scripted upstreams on the other."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from evenload.router.fake_wire import (
    DONE,
    END,
    SSE_HEAD,
    Cut,
    Gate,
    Reset,
    Script,
    Stall,
    Trickle,
    chunk,
    content,
    error,
    error_frame,
    finish,
    frame,
    response,
    role,
    sse,
)
from evenload.router.fakes import post
from evenload.router.limits import Limits
from evenload.router.proxy import FRAMING_BYTES
from evenload.router.upstream import Upstream
from tests.router.stage import BUSY, FAST, GOOD, GOOD_BODY, JSON_ANSWER, PLAIN, STREAM, Stage, events, stage, until

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


# Retries: nothing has been sent to the client yet.


@pytest.mark.parametrize(
    ("bad", "kind", "cause"),
    [
        (None, "connect_error", "refused"),
        ([error(500, "boom")], "http_error", "http_500"),
        ([error(503, BUSY)], "saturated", "engine_busy"),
        ([error(429, "queue is full", ("retry-after", "9"))], "saturated", "engine_busy"),
        ([error(429, "x", code="insufficient_quota")], "quota", "provider_quota"),
        ([error(500, "cannot schedule new futures after shutdown")], "http_error", "draining"),
        ([Cut()], "upstream_cut", "eof"),
        ([Reset()], "upstream_cut", "reset"),
        ([b"garbage\r\n\r\n", Stall()], "http_error", "unparsable"),
        (sse(error_frame(503, BUSY), DONE), "saturated", "engine_busy"),
        (sse(role(), error_frame(500, "EngineCore encountered an issue."), DONE), "stream_error", "engine_dead"),
        ([*sse(role(), end=False), Cut()], "upstream_cut", "eof"),
        ([*sse(role(), end=False), Reset()], "upstream_cut", "reset"),
        (sse(role()), "upstream_cut", "eof"),
        (sse(role(), DONE), "upstream_cut", "no_finish_reason"),
        (sse(), "upstream_cut", "eof"),
        ([SSE_HEAD + chunk(role() + content("lost") + error_frame(500, "boom")), END], "stream_error", "http_500"),
        ([response(200, b'{"error":{"message":"boom","code":500}}')], "stream_error", "http_500"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", Cut()], "upstream_cut", "eof"),
    ],
)
async def test_a_failure_before_content_is_made_good_by_another_instance(bad: Any, kind: str, cause: str) -> None:
    async with stage(bad, GOOD) as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.body, got.whole) == (200, GOOD_BODY, True)
        assert got.headers[b"x-evenload-instance"] == b"b"
        assert s.ends == [("a", kind, cause), ("b", "ok", "")]
        assert s.dispatcher.leases[0].first_token_ms is None


async def test_a_first_token_that_does_not_come_in_time_is_awaited_elsewhere() -> None:
    limits = Limits(first_token_s=0.1)
    async with stage([*sse(role(), end=False), Stall()], GOOD, limits=limits) as s:
        assert (await post(s.url, STREAM)).body == GOOD_BODY
        assert s.ends == [("a", "timeout", "first_token"), ("b", "ok", "")]
        await until(lambda: s.engines[0].aborts == 1)


async def test_keep_alive_comments_do_not_put_the_first_token_limit_off() -> None:
    ping: list[Any] = [chunk(b": wait\n\n"), Stall(0.03)]
    pings = [SSE_HEAD, *(ping * 40)]
    async with stage(pings, GOOD, limits=Limits(first_token_s=0.2)) as s:
        assert (await post(s.url, STREAM)).body == GOOD_BODY
        assert s.ends[0] == ("a", "timeout", "first_token")


async def test_the_same_instance_is_asked_again_after_a_back_off() -> None:
    async with stage([[error(503, BUSY)], GOOD], limits=Limits(back_off_s=0.1)) as s:
        began = time.monotonic()
        assert (await post(s.url, STREAM)).body == GOOD_BODY
        assert time.monotonic() - began >= 0.05
        assert s.ends == [("a", "saturated", "engine_busy"), ("a", "ok", "")]


async def test_a_retry_after_is_waited_for_before_the_same_instance_is_asked() -> None:
    async with stage([[error(429, "queue is full", ("retry-after-ms", "150"))], GOOD]) as s:
        began = time.monotonic()
        assert (await post(s.url, STREAM)).body == GOOD_BODY
        assert time.monotonic() - began >= 0.15


class _Latest(random.Random):
    """Draws the upper end."""

    def uniform(self, a: float, b: float) -> float:
        del a
        return b


@pytest.mark.parametrize(
    ("busy", "wait_s"),
    [(error(503, BUSY), 0.15), (error(429, "queue is full", ("retry-after-ms", "160")), 0.2)],
    ids=["no word", "retry-after-ms"],
)
async def test_waits_are_spread_so_that_clients_do_not_come_back_together(busy: bytes, wait_s: float) -> None:
    async with stage([[busy], GOOD], limits=Limits(back_off_s=0.1), rng=_Latest()) as s:
        began = time.monotonic()
        assert (await post(s.url, STREAM)).body == GOOD_BODY
        assert time.monotonic() - began >= wait_s


async def test_a_retry_after_that_no_calendar_has_is_none() -> None:
    never = [error(429, "queue is full", ("retry-after", "Mon, 01 Jan 99999999999999 00:00:00 GMT"))]
    async with stage(never, GOOD) as s:
        assert (await post(s.url, STREAM)).body == GOOD_BODY
        assert s.ends == [("a", "saturated", "engine_busy"), ("b", "ok", "")]


async def test_an_instance_that_asks_for_a_long_wait_is_not_asked_again() -> None:
    async with stage([[error(429, "queue is full", ("retry-after", "30"))], GOOD]) as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.headers[b"retry-after"]) == (429, b"30")
        assert s.ends == [("a", "saturated", "engine_busy"), ("a", "rejected", "not_sent")]
        assert len(s.engines[0].requests) == 1


# No retry.


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422])
async def test_a_clients_error_is_passed_on_and_not_retried(status: int) -> None:
    async with stage([error(status, "bad request")], GOOD) as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.error["message"]) == (status, "bad request")
        assert s.ends == [("a", "rejected", f"http_{status}")]


EMPTY = b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n"
UNFINISHED = b"HTTP/1.1 %d X\r\ncontent-length: 99\r\n\r\n{"
LONG = b"HTTP/1.1 %d X\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000  # an engine that echoes the prompt


@pytest.mark.parametrize("status", [400, 403, 404, 409, 413, 422, 499])
@pytest.mark.parametrize("script", [[EMPTY], [UNFINISHED, Cut()], [LONG]], ids=["empty", "unfinished", "long"])
async def test_a_clients_error_without_words_keeps_its_status_and_is_not_retried(script: Any, status: int) -> None:
    async with stage([script[0] % status, *script[1:]], GOOD) as s:
        for body in (STREAM, PLAIN):
            got = await post(s.url, body)
            assert (got.status, got.error["code"]) == (status, "upstream_rejected")
            assert got.error["type"] == "invalid_request_error"
        assert s.ends == [("a", "rejected", f"http_{status}")] * 2


@pytest.mark.parametrize("script", [[EMPTY], [UNFINISHED, Cut()], [LONG]], ids=["empty", "unfinished", "long"])
async def test_without_words_a_429_is_load_and_a_5xx_and_a_401_are_failures(script: Any) -> None:
    for status, told, code in (
        (429, 429, "overloaded"),
        (500, 502, "upstream_http_500"),
        (401, 502, "upstream_unauthorized"),
    ):
        async with stage([script[0] % status, *script[1:]], limits=Limits(attempts_max=1)) as s:
            got = await post(s.url, STREAM)
            assert (got.status, got.error["code"]) == (told, code)


async def test_a_long_error_is_judged_by_how_it_begins() -> None:
    async with stage([error(503, "KV cache is full" + "x" * 100_000)], limits=Limits(attempts_max=1)) as s:
        assert (await post(s.url, STREAM)).status == 503
        assert s.ends == [("a", "saturated", "kv_exhausted")]


async def test_a_clients_error_inside_a_stream_is_passed_on_byte_for_byte() -> None:
    async with stage(sse(error_frame(400, "too long"), DONE), GOOD) as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.body) == (200, error_frame(400, "too long") + DONE)
        assert s.ends == [("a", "rejected", "http_400")]


async def test_after_content_an_upstreams_error_event_passes_and_nothing_is_retried() -> None:
    frames = (role(), content("Hel"), error_frame(500, "EngineCore encountered an issue."), DONE)
    async with stage(_spaced(*frames), GOOD) as s:
        got = await post(s.url, STREAM)
        assert got.body == b"".join(frames)
        assert s.ends == [("a", "stream_error", "engine_dead")]


@pytest.mark.parametrize(("end", "cause"), [(Cut(), "eof"), (Reset(), "reset"), (END, "eof")])
async def test_after_content_a_cut_becomes_an_error_event(end: Any, cause: str) -> None:
    async with stage([*_spaced(role(), content("Hel"))[:-1], Stall(0.02), end], GOOD) as s:
        got = await post(s.url, STREAM)
        assert got.body.startswith(role() + content("Hel"))
        assert set(events(got)[-1]["error"]) == {"message", "type", "param", "code"}
        assert b"[DONE]" not in got.body
        assert got.whole
        assert s.ends == [("a", "upstream_cut", cause)]


async def test_a_cut_inside_a_frame_leaves_the_body_unfinished() -> None:
    async with stage([*_spaced(role(), content("Hel"))[:-1], chunk(b'data: {"cho'), Stall(0.02), Cut()]) as s:
        got = await post(s.url, STREAM)
        assert not got.whole
        assert s.ends == [("a", "upstream_cut", "eof")]


async def test_a_long_answer_that_is_cut_leaves_the_body_unfinished() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 300000\r\n\r\n"
    async with stage([head, b"{" + b" " * 200_000, Cut()], GOOD) as s:
        got = await post(s.url, PLAIN)
        assert (got.status, got.whole) == (200, False)
        assert s.ends == [("a", "upstream_cut", "eof")]


async def test_a_stream_that_goes_silent_after_content_ends_with_an_error_event() -> None:
    async with stage([*_spaced(role(), content("Hel"))[:-1], Stall()], GOOD, limits=Limits(idle_s=0.1)) as s:
        got = await post(s.url, STREAM)
        assert events(got)[-1]["error"]["code"] == "idle"
        assert s.ends == [("a", "timeout", "idle")]


async def test_a_slow_stream_is_no_silent_one() -> None:
    frames = [step for text in "abcdefgh" for step in (chunk(content(text)), Stall(0.06))]
    async with stage([SSE_HEAD, *frames, chunk(finish()), END], limits=Limits(idle_s=0.25, first_token_s=0.25)) as s:
        got = await post(s.url, STREAM)
        assert got.body.endswith(finish())
        assert s.ends == [("a", "ok", "")]


async def test_an_answer_that_takes_too_long_is_a_504_and_not_generated_twice() -> None:
    async with stage([Stall()], GOOD, limits=Limits(answer_s=0.1)) as s:
        got = await post(s.url, PLAIN)
        assert (got.status, got.error["code"]) == (504, "upstream_answer")
        assert s.ends == [("a", "timeout", "answer")]


def _spaced(*frames: bytes) -> list[Any]:
    """A stream whose content has been passed on before the next frame comes."""
    steps: list[Any] = [SSE_HEAD]
    for one in frames:
        steps += [chunk(one), Stall(0.02)]
    return [*steps[:-1], END]


# When nobody can.


async def test_the_last_upstreams_own_error_is_passed_on() -> None:
    async with stage(None, [Cut()], [error(500, "boom")]) as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.error["message"]) == (500, "boom")
        assert [kind for _, kind, _ in s.ends] == ["connect_error", "upstream_cut", "http_error"]


BUSY_1S = [error(429, "Too many requests in queue", ("retry-after", "1"))]
BUSY_20S = [error(503, BUSY, ("retry-after", "20"))]
NO_QUOTA = [error(429, "No", ("retry-after", "30"), code="insufficient_quota")]


@pytest.mark.parametrize(
    ("scripts", "status", "code", "wait"),
    [
        ((BUSY_1S, None), 429, "overloaded", b"1"),
        ((None, BUSY_1S), 429, "overloaded", b"1"),
        (([Cut()], BUSY_20S, [error(500, "boom")]), 503, "overloaded", b"20"),
        ((BUSY_20S, [error(401, "no")], None), 503, "overloaded", b"20"),
        ((NO_QUOTA, [error(500, "boom")]), 429, "provider_quota", b"30"),
        ((NO_QUOTA, BUSY_1S, None), 429, "overloaded", b"1"),
        ((BUSY_20S, [error(429, "No", code="insufficient_quota")], None), 503, "overloaded", b"20"),
        ((BUSY_20S, NO_QUOTA, [Cut()]), 503, "overloaded", b"20"),
    ],
)
async def test_load_is_told_whoever_else_is_dead(scripts: Any, status: int, code: str, wait: bytes) -> None:
    async with stage(*scripts, limits=Limits(back_off_s_max=0.1)) as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.error["code"], got.headers[b"retry-after"]) == (status, code, wait)


async def test_a_clients_error_after_a_busy_instance_is_the_clients() -> None:
    async with stage(BUSY_1S, [error(400, "bad request")]) as s:
        assert (await post(s.url, STREAM)).status == 400


async def test_an_error_event_inside_a_stream_becomes_an_error_status_when_nobody_else_can() -> None:
    async with stage(sse(error_frame(500, "boom"), DONE)) as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.error["message"]) == (500, "boom")
        assert got.headers[b"content-type"] == b"application/json"


async def test_attempts_are_bounded() -> None:
    async with stage(*[[error(500, "boom")]] * 5) as s:
        assert (await post(s.url, STREAM)).status == 500
        assert len(s.ends) == FAST.attempts_max


@pytest.mark.parametrize(("bad", "status"), [(None, 502), ([Cut()], 502)])
async def test_without_an_upstreams_error_evenload_gives_its_own(bad: Any, status: int) -> None:
    async with stage(bad) as s:
        got = await post(s.url, STREAM)
        assert got.status == status
        assert set(got.error) == {"message", "type", "param", "code"}
        assert b"x-request-id" in got.headers


async def test_an_unknown_model_is_a_404() -> None:
    async with stage(GOOD, models=["other"]) as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.error["code"]) == (404, "model_not_found")


async def test_no_instance_is_a_503_that_says_when_to_come_back() -> None:
    async with stage() as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.error["code"], got.headers[b"retry-after"]) == (503, "no_instance", b"3")


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


# The client leaves.


async def leave_when(s: Stage, condition: Callable[[], Any], body: object = STREAM) -> None:
    client = Upstream(s.url)
    data = json.dumps(body).encode()
    task = asyncio.create_task(client.request("POST", b"/v1/chat/completions", [], data))
    await until(condition)
    if task.done():
        task.result().abort()
    else:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("body", [STREAM, PLAIN], ids=["stream", "plain"])
async def test_a_client_that_leaves_during_prefill_stops_the_engine_and_blames_nobody(body: Any) -> None:
    async with stage([Stall()]) as s:
        await leave_when(s, lambda: s.engines[0].requests, body)
        await until(lambda: s.engines[0].aborts == 1 and s.dispatcher.in_flight == 0, seconds=1.0)
        assert s.ends == [("a", "client_gone", "client_left")]


async def test_a_client_that_leaves_while_the_head_is_held_stops_the_engine() -> None:
    async with stage([*sse(role(), end=False), Stall()]) as s:
        await leave_when(s, lambda: s.engines[0].written_bytes > len(SSE_HEAD))
        await until(lambda: s.engines[0].aborts == 1, seconds=1.0)
        await until(lambda: s.dispatcher.in_flight == 0)
        assert s.ends == [("a", "client_gone", "client_left")]


async def test_a_client_that_leaves_in_the_middle_of_a_stream_stops_the_engine() -> None:
    async with stage([SSE_HEAD, chunk(role() + content("Hel")), Stall()]) as s:
        client = Upstream(s.url)
        got = await client.request("POST", b"/v1/chat/completions", [], json.dumps(STREAM).encode())
        assert await got.read_chunk()
        got.abort()
        await until(lambda: s.engines[0].aborts == 1 and s.dispatcher.in_flight == 0, seconds=1.0)
        assert s.ends == [("a", "client_gone", "client_left")]
        assert s.dispatcher.leases[0].first_token_ms is not None


async def test_a_client_that_leaves_during_a_back_off_is_not_served() -> None:
    limits = Limits(back_off_s=5.0, back_off_s_max=9.0)
    async with stage([[error(503, BUSY)], GOOD], limits=limits) as s:
        await leave_when(s, lambda: len(s.dispatcher.leases) == 2)
        await until(lambda: s.dispatcher.in_flight == 0, seconds=1.0)
        assert s.dispatcher.kinds == ["saturated", "client_gone"]
        assert len(s.engines[0].requests) == 1


async def test_a_client_that_leaves_before_its_body_is_complete_books_nothing() -> None:
    async with stage(GOOD) as s:
        _, writer = await asyncio.open_connection("127.0.0.1", int(s.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await post(s.url, STREAM)).status == 200
        assert len(s.dispatcher.leases) == 1


async def test_a_slow_client_stops_the_engine_and_is_not_timed_out() -> None:
    big = chunk(content("x" * 30_000))
    script: Script = [SSE_HEAD, chunk(role()), *([big] * 1500), chunk(finish()), END]
    async with stage(script, limits=Limits(idle_s=0.3)) as s:
        client = Upstream(s.url)
        got = await client.request("POST", b"/v1/chat/completions", [], json.dumps(STREAM).encode())
        written = -1
        while written != s.engines[0].written_bytes:  # until it stands still, for longer than the idle limit
            written = s.engines[0].written_bytes
            await asyncio.sleep(0.4)
        assert written < 20_000_000  # of 45 MB
        size = 0
        while part := await got.read_chunk():
            size += len(part)
        assert size > 45_000_000
        got.release()
        client.close()
        await until(lambda: s.dispatcher.in_flight == 0)
        assert s.ends == [("a", "ok", "")]


async def test_many_requests_with_every_kind_of_end_leak_no_lease() -> None:
    gate = asyncio.Event()
    scripts: list[Script] = [
        GOOD,
        [error(500, "boom")],
        [SSE_HEAD, chunk(role() + content("x")), Stall(0.01), Cut()],
        [Gate(gate), Cut()],
        [Reset()],
        sse(error_frame(503, BUSY), DONE),
    ]
    async with stage([scripts[i % 6] for i in range(120)], GOOD) as s:
        tasks = [asyncio.create_task(post(s.url, STREAM)) for _ in range(100)]
        await until(lambda: len(s.engines[0].requests) >= 60)
        for task in tasks[::5]:
            task.cancel()
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: s.dispatcher.in_flight == 0)
        assert len(s.dispatcher.leases) >= 100


async def test_the_model_named_in_a_frame_is_not_touched() -> None:
    odd = frame({"model": "another", "choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]})
    async with stage(sse(odd)) as s:
        assert (await post(s.url, STREAM)).body == odd


async def test_each_test_stands_on_the_server_that_it_names(request: pytest.FixtureRequest) -> None:
    async with stage(GOOD) as s:
        got = await post(s.url, b"", path="/elsewhere", method="GET")
    assert got.headers[b"x-served-by"].decode() == request.node.callspec.params["http_server"]
