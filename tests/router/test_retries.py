"""A failure before content is made good by another attempt; when nobody can, the client is told what helps it most."""

import random
import time
from typing import Any

import pytest

from evenload.router.fake_wire import (
    DONE,
    END,
    SSE_HEAD,
    Cut,
    Reset,
    Stall,
    chunk,
    content,
    error,
    error_frame,
    response,
    role,
    sse,
)
from evenload.router.fakes import post
from evenload.router.limits import Limits
from tests.router.stage import BUSY, FAST, GOOD, GOOD_BODY, STREAM, stage, until


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
    pings = [SSE_HEAD, *(ping * 600)]
    async with stage(pings, GOOD, limits=Limits(first_token_s=0.2)) as s:
        began_s = time.monotonic()
        assert (await post(s.url, STREAM)).body == GOOD_BODY
        assert time.monotonic() - began_s < 5.0  # of the 18 that the pings go on
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
