"""F53 for what is no stream of events: the time between two pieces is limited, the total is not."""

import asyncio
import json
from typing import Any

import pytest

from evenload.router.fake_wire import END, SSE_HEAD, Stall, chunk, content, response
from evenload.router.fakes import post
from evenload.router.limits import Limits
from evenload.router.upstream import Upstream
from tests.router.stage import JSON_ANSWER, PLAIN, STREAM, events, stage, until

SPEECH = b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n"
BEGUN = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
LIMITS = Limits(idle_s=0.3, answer_s=20.0)
FOREVER_S = 10.0


async def test_speech_that_goes_silent_is_given_up_and_never_looks_whole() -> None:
    async with stage([SPEECH, chunk(b"ID3"), Stall()], limits=LIMITS) as s, asyncio.timeout(FOREVER_S):
        got = await post(s.url, {"model": "tiny"}, path="/v1/audio/speech")
        assert (got.status, got.body, got.whole) == (200, b"ID3", False)
        assert s.ends == [("a", "timeout", "idle")]
        await until(lambda: s.engines[0].aborts == 1)


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_an_answer_that_goes_silent_within_its_body_is_asked_for_elsewhere(status: int) -> None:
    good = [response(200, JSON_ANSWER)]
    async with stage([BEGUN % status, Stall()], good, limits=LIMITS) as s, asyncio.timeout(FOREVER_S):
        assert (await post(s.url, PLAIN)).body == JSON_ANSWER
        assert s.ends == [("a", "timeout", "idle"), ("b", "ok", "")]
        await until(lambda: s.engines[0].aborts == 1)


@pytest.mark.parametrize("kind", ["speech", "answer"])
async def test_what_comes_slowly_but_steadily_is_waited_for(kind: str) -> None:
    head = SPEECH if kind == "speech" else SPEECH.replace(b"audio/mpeg", b"application/json")
    body = b'{"a":"b"}'
    pieces: list[Any] = [step for byte in body for step in (chunk(bytes([byte])), Stall(0.1))]
    async with stage([head, *pieces, END], limits=LIMITS) as s:
        path = "/v1/audio/speech" if kind == "speech" else "/v1/embeddings"
        got = await post(s.url, {"model": "tiny"}, path=path)
        assert (got.body, got.whole) == (body, True)
        assert s.ends == [("a", "ok", "")]


async def test_while_the_client_does_not_read_nothing_is_waited_for() -> None:
    piece = chunk(b"x" * 60_000)
    async with stage([SPEECH, *([piece] * 400), END], limits=LIMITS) as s, asyncio.timeout(3 * FOREVER_S):
        client = Upstream(s.url)
        got = await client.request("POST", b"/v1/audio/speech", [], json.dumps({"model": "tiny"}).encode())
        written = -1
        while written != s.engines[0].written_bytes:  # until it stands still, for longer than the limit
            written = s.engines[0].written_bytes
            await asyncio.sleep(3 * LIMITS.idle_s)
        assert written < 20_000_000  # of 24 MB
        assert len(await got.read_all(25_000_000)) == 24_000_000
        got.release()
        client.close()
        await until(lambda: s.ends == [("a", "ok", "")])


async def test_a_stream_is_limited_again_after_each_piece() -> None:
    script = [SSE_HEAD, chunk(content("a")), Stall(0.1), chunk(content("b")), Stall(0.1), chunk(content("c")), Stall()]
    async with stage(script, limits=LIMITS) as s, asyncio.timeout(FOREVER_S):
        assert events(await post(s.url, STREAM))[-1]["error"]["code"] == "idle"
        assert s.ends == [("a", "timeout", "idle")]
