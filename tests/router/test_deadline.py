"""The client's own deadline, over real sockets: it bounds everything, and blames nobody."""

import asyncio
import json
import time
from typing import Any

import pytest

from evenload.router import exchange
from evenload.router.fake_wire import (
    SSE_HEAD,
    Cut,
    Stall,
    chunk,
    content,
    error,
    response,
    role,
)
from evenload.router.fakes import post
from evenload.router.limits import Limits
from tests.router.stage import FAST, GOOD, GOOD_BODY, JSON_ANSWER, PLAIN, STREAM, events, fleet, stage, until
from tests.router.test_bounds import slow_reader

NAME = b"x-request-timeout-ms"
SLACK_S = 0.4  # two busy cores


def within(milliseconds: int) -> tuple[bytes, bytes]:
    return NAME, b"%d" % milliseconds


@pytest.mark.parametrize("body", [STREAM, PLAIN])
async def test_nothing_in_time_is_a_504_with_a_code_of_its_own(body: Any) -> None:
    async with stage([Stall()]) as s:
        began_s = time.monotonic()
        got = await post(s.url, body, within(200))
        assert (got.status, got.error["code"]) == (504, "deadline_exceeded")
        assert 0.19 < time.monotonic() - began_s < 0.2 + SLACK_S
        assert s.ends == [("a", "client_gone", "deadline")]
        await until(lambda: s.engines[0].aborts == 1)


async def test_it_bounds_the_whole_answer_not_only_the_first_token() -> None:
    drip = [SSE_HEAD, chunk(role()), *([Stall(0.02), chunk(content("x"))] * 500)]
    async with stage(drip) as s:
        began_s = time.monotonic()
        got = await post(s.url, STREAM, within(300))
        assert time.monotonic() - began_s < 0.3 + SLACK_S
        assert events(got)[-1]["error"]["code"] == "deadline_exceeded"
        assert got.whole
        assert b"[DONE]" not in got.body
        assert s.ends == [("a", "client_gone", "deadline")]


async def test_in_the_middle_of_a_frame_the_body_is_left_unfinished() -> None:
    async with stage([SSE_HEAD, chunk(role() + content("x") + b'data: {"choi'), Stall()]) as s:
        got = await post(s.url, STREAM, within(150))
        assert not got.whole
        assert s.ends == [("a", "client_gone", "deadline")]


async def test_a_client_that_does_not_read_is_not_waited_for_at_its_deadline() -> None:
    big = chunk(content("x" * 65_000))
    async with stage([SSE_HEAD, chunk(role()), *([big] * 3200)]) as s:
        body = json.dumps(STREAM).encode()
        client = slow_reader(s.url, body, NAME + b": 400\r\n")
        await until(lambda: s.dispatcher.leases and s.dispatcher.in_flight == 0, 4.0)
        assert s.ends == [("a", "client_gone", "deadline")]
        client.close()


async def test_an_answer_in_time_is_not_touched() -> None:
    async with stage(GOOD) as s:
        assert (await post(s.url, STREAM, within(5000))).body == GOOD_BODY
        assert s.ends == [("a", "ok", "")]
        assert NAME not in s.engines[0].requests[0].headers


async def test_an_instance_whose_own_limit_has_passed_is_blamed_all_the_same() -> None:
    limits = Limits(first_token_s=0.2, back_off_s=0.01)
    async with stage([Stall()], [Stall()], limits=limits) as s:
        got = await post(s.url, STREAM, within(225))
        assert (got.status, got.error["code"]) == (504, "upstream_first_token")
        assert s.ends == [("a", "timeout", "first_token")]


async def test_a_retry_is_not_begun_when_the_rest_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "RETRY_REST_S_MIN", 1.5)  # its own 50 ms are over by chance on a busy machine
    slow = [Stall(0.2), Cut()]
    async with stage(slow, GOOD) as s:
        assert (await post(s.url, STREAM, within(1500))).status == 502  # the failure itself, told in time
        assert s.ends == [("a", "upstream_cut", "eof")]
        assert s.engines[1].requests == []
        assert (await post(s.url, STREAM, within(20_000))).body == GOOD_BODY


async def test_a_retry_is_not_begun_at_an_instance_that_is_known_to_take_longer() -> None:
    async with stage([error(500, "boom")], GOOD) as s:
        s.dispatcher.expected_ms = 3000.0
        assert (await post(s.url, STREAM, within(2000))).status == 500
        assert s.ends == [("a", "http_error", "http_500"), ("b", "rejected", "not_sent")]
        assert s.engines[1].requests == []
        assert (await post(s.url, STREAM, within(20_000))).body == GOOD_BODY


async def test_it_covers_the_wait_before_a_retry() -> None:
    busy = error(503, "boom", ("retry-after-ms", "600"))
    limits = Limits(back_off_s=0.01, back_off_s_max=1.0)
    async with stage([busy], limits=limits) as s:
        began_s = time.monotonic()
        assert (await post(s.url, STREAM, within(300))).status == 503
        assert time.monotonic() - began_s < 0.3


async def test_deadlines_do_not_change_what_the_fleet_thinks_of_an_instance() -> None:
    async with fleet([Stall()]) as f:
        before = f.state("a")
        for _ in range(5):
            assert (await post(f.url, PLAIN, within(50))).status == 504
        after = f.state("a")
        assert (after.errors, after.saturations, after.cooling_until_ms) == (before.errors, 0, before.cooling_until_ms)
        assert await f.outcomes("a") == {"client_gone": 5}


@pytest.mark.parametrize("value", [b"", b"0", b"-1", b"1.5", b"1s", b"86400001", b"9" * 30, b"\xb2"])
async def test_a_value_that_is_none_is_refused_by_name(value: bytes) -> None:
    async with stage(GOOD) as s:
        got = await post(s.url, STREAM, (NAME, value))
        assert (got.status, got.error["code"], got.error["param"]) == (400, "invalid_value", NAME.decode())
        assert s.dispatcher.leases == []


async def test_a_stream_without_the_header_has_no_total() -> None:
    drip = [SSE_HEAD, chunk(role()), *([Stall(0.05), chunk(content("x"))] * 20), Cut()]
    async with stage(drip, limits=FAST) as s:
        await post(s.url, STREAM)
        assert s.ends == [("a", "upstream_cut", "eof")]


async def test_a_body_that_comes_too_late_is_over_as_well() -> None:
    async with stage([Stall()]) as s:
        body = json.dumps(PLAIN).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(s.url.rsplit(":", 1)[1]))
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%b: 100\r\ncontent-length: %d\r\n\r\n" % (NAME, len(body))
        writer.write(head + body[:5])
        await asyncio.sleep(0.2)
        writer.write(body[5:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 504 ")
        writer.close()


async def test_a_json_answer_under_way_at_the_deadline_is_not_half_given() -> None:
    whole = response(200, b'{"choices":[]}')
    async with stage([whole[:-5], Stall()]) as s:
        got = await post(s.url, PLAIN, within(150))
        assert (got.status, got.error["code"]) == (504, "deadline_exceeded")


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n"


async def said(url: str, *pieces: bytes | float) -> tuple[bytes, float]:
    """Send pieces, a number being a pause; return what came up to the end and after how many seconds that was."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    began_s = time.monotonic()

    async def send() -> None:
        for piece in pieces:
            if isinstance(piece, bytes):
                writer.write(piece)
            else:
                await asyncio.sleep(piece)

    sending = asyncio.create_task(send())
    try:
        got = await asyncio.wait_for(reader.read(), 10)
        return got, time.monotonic() - began_s
    finally:
        sending.cancel()
        writer.close()


async def test_it_runs_while_the_body_comes() -> None:
    body = json.dumps(PLAIN).encode()
    async with stage(GOOD) as s:
        got, took_s = await said(
            s.url, HEAD % (NAME + b": 300\r\nconnection: close\r\n", len(body)), body[:9], 3.0, body[9:]
        )
        assert got.startswith(b"HTTP/1.1 504 ")
        assert b"deadline_exceeded" in got
        assert 0.29 < took_s < 0.3 + 2 * SLACK_S
        assert s.ends == []


async def test_it_runs_from_the_arrival_of_a_head_that_waits_for_those_before_it() -> None:
    body = json.dumps(PLAIN).encode()
    first, second = HEAD % (b"", len(body)), HEAD % (NAME + b": 250\r\nconnection: close\r\n", len(body))
    async with stage([[Stall(0.6), response(200, JSON_ANSWER)], [Stall(0.15), response(200, JSON_ANSWER)]]) as s:
        got, _ = await said(s.url, first + body + second + body)
        assert got.count(b"HTTP/1.1 200 ") == 1
        assert got.count(b"HTTP/1.1 504 ") == 1


async def test_blanks_round_it_are_no_part_of_it() -> None:
    body = json.dumps(PLAIN).encode()
    more = NAME + b": \t 5000 \t\r\nx-request-id:  abc \r\nconnection: close\r\n"
    async with stage([response(200, JSON_ANSWER)]) as s:
        got, _ = await said(s.url, HEAD % (more, len(body)) + body)
        assert got.startswith(b"HTTP/1.1 200 ")
        assert b"x-request-id: abc\r\n" in got
        assert s.engines[0].requests[0].headers[b"x-request-id"] == b"abc"
