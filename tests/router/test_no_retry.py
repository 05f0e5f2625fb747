"""What is not tried again: a client's error, and an answer of which the client has a part."""

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
    finish,
    role,
    sse,
)
from evenload.router.fakes import post
from evenload.router.limits import Limits
from tests.router.stage import GOOD, PLAIN, STREAM, events, stage


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
