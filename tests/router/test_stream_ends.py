"""Streams that do not end as they should: nobody waits without a limit, and a whole answer is not called half."""

import asyncio
import json
import time
from typing import Any

import pytest

from evenload.router import fake_protocols as wire
from evenload.router.fake_wire import (
    DONE,
    END,
    SSE_HEAD,
    Cut,
    Reset,
    Stall,
    chunk,
    content,
    error_frame,
    finish,
    frame,
    role,
    sse,
)
from evenload.router.fakes import post
from evenload.router.limits import Limits
from evenload.router.upstream import Upstream
from tests.router.protocols import ASKED, Protocol, each_protocol
from tests.router.stage import GOOD, GOOD_BODY, STREAM, events, stage, until

FOREVER_S = 20.0
LONG = role() * 600  # more than is held back: let through before there is content
assert len(LONG) > Limits().hold_bytes_max


def silent_after(*frames: bytes) -> list[Any]:
    return [*sse(*frames, end=False), Stall()]


# Let through before content: the first token's limit goes on, then the idle one.


@pytest.mark.parametrize(
    ("frames", "kind", "cause", "limits"),
    [
        ([LONG], "timeout", "first_token", Limits(first_token_s=0.3)),
        ([finish()], "timeout", "idle", Limits(idle_s=0.3)),
        ([LONG, finish()], "timeout", "idle", Limits(idle_s=0.3)),
    ],
    ids=["nothing yet", "a finish", "a finish later"],
)
async def test_a_stream_let_through_before_content_is_not_waited_for_without_a_limit(
    frames: list[bytes], kind: str, cause: str, limits: Limits
) -> None:
    async with stage(silent_after(*frames), GOOD, limits=limits) as s, asyncio.timeout(FOREVER_S):
        got = await post(s.url, STREAM)
        assert (events(got)[-1]["error"]["code"], got.whole) == (cause, True)
        assert s.ends == [("a", kind, cause)]
        await until(lambda: s.engines[0].aborts == 1)


@pytest.mark.parametrize(
    ("frames", "kind", "cause"),
    [
        ([error_frame(400, "bad")], "rejected", "http_400"),
        ([LONG, error_frame(400, "bad")], "rejected", "http_400"),
        ([LONG, error_frame(500, "boom")], "stream_error", "http_500"),
        ([content("x"), error_frame(500, "boom")], "stream_error", "http_500"),
    ],
)
async def test_silence_after_an_error_ends_the_stream_without_a_second_one(
    frames: list[bytes], kind: str, cause: str
) -> None:
    limits = Limits(idle_s=0.3)
    async with stage(silent_after(*frames), GOOD, limits=limits) as s, asyncio.timeout(FOREVER_S):
        got = await post(s.url, STREAM)
        assert (got.body, got.whole) == (b"".join(frames), True)
        assert s.ends == [("a", kind, cause)]


async def test_the_first_tokens_limit_counts_from_the_sending_whatever_was_let_through() -> None:
    ping: list[Any] = [chunk(b": wait\n\n"), Stall(0.03)]
    async with stage([SSE_HEAD, chunk(LONG), *(ping * 600)], limits=Limits(first_token_s=0.4)) as s:
        began_s = time.monotonic()
        got = await post(s.url, STREAM)
        assert events(got)[-1]["error"]["code"] == "first_token"
        assert time.monotonic() - began_s < 5.0  # of the 18 that the pings go on


async def test_content_after_what_was_let_through_puts_the_idle_limit_in_its_place() -> None:
    slow = [SSE_HEAD, chunk(LONG), *[chunk(content("x")), Stall(0.5)] * 2, chunk(finish() + DONE), END]
    async with stage(slow, limits=Limits(first_token_s=0.4)) as s:
        assert (await post(s.url, STREAM)).body.endswith(finish() + DONE)
        assert s.ends == [("a", "ok", "")]
        assert s.dispatcher.leases[0].first_token_ms is not None


async def test_a_client_that_does_not_read_uses_up_nothing_of_the_first_tokens_time() -> None:
    comment = chunk(b": " + b"x" * 60_000 + b"\n\n")
    script = [SSE_HEAD, *([comment] * 400), chunk(content("x") + finish() + DONE), END]
    async with stage(script, limits=Limits(first_token_s=1.5)) as s:
        client = Upstream(s.url)
        got = await client.request("POST", b"/v1/chat/completions", [], json.dumps(STREAM).encode())
        written = -1
        while written != s.engines[0].written_bytes:  # until it stands still
            written = s.engines[0].written_bytes
            await asyncio.sleep(0.2)
        assert written < 20_000_000  # of 24 MB
        await asyncio.sleep(1.6)
        tail = b""
        while part := await got.read_chunk():
            tail = tail[-1000:] + part
        assert tail.endswith(finish() + DONE)
        got.release()
        client.close()
        await until(lambda: s.ends == [("a", "ok", "")])


# After the API's own end of a whole answer: what the upstream does then is no failure of the answer.


@each_protocol
@pytest.mark.parametrize("then", [Stall(), Cut(), Reset(), b"garbage\r\n"], ids=["silence", "FIN", "RST", "no HTTP"])
async def test_a_whole_answer_is_whole_however_its_connection_ends(p: Protocol, then: Any) -> None:
    script = [*sse(p.whole, end=False), Stall(0.05), then, *([] if isinstance(then, Cut | Reset) else [Stall()])]
    async with stage([script, script], limits=Limits(idle_s=0.3)) as s:
        for _ in range(2):
            got = await post(s.url, ASKED, path=p.path)
            assert (got.status, got.body, got.whole) == (200, p.whole, True)
        assert s.ends == [("a", "ok", "")] * 2
        assert [lease.end["output_tokens"] for lease in s.dispatcher.leases] == [2, 2]
        assert s.engines[0].connections == 2  # the first one is not used again


async def test_the_last_chunk_is_not_waited_for_as_long_as_for_text() -> None:
    async with stage(silent_after(GOOD_BODY), limits=Limits(idle_s=60.0)) as s, asyncio.timeout(FOREVER_S):
        assert (await post(s.url, STREAM)).body == GOOD_BODY


async def test_a_connection_whose_last_chunk_comes_a_little_later_is_used_again() -> None:
    async with stage([*sse(GOOD_BODY, end=False), Stall(0.2), END]) as s:
        for _ in range(2):
            assert (await post(s.url, STREAM)).body == GOOD_BODY
        assert s.engines[0].connections == 1


@pytest.mark.parametrize("then", [Stall(), Cut(), Reset()], ids=["silence", "FIN", "RST"])
@pytest.mark.parametrize(
    "frames", [(content("x"), DONE), (content("x"), finish())], ids=["no finish reason", "no [DONE]"]
)
async def test_an_end_without_a_finish_or_a_finish_without_the_end_stays_a_failure(
    frames: tuple[bytes, ...], then: Any
) -> None:
    async with stage([*sse(*frames, end=False), Stall(0.05), then], limits=Limits(idle_s=0.3)) as s:
        got = await post(s.url, STREAM)
        assert "error" in events(got)[-1]
        assert s.ends[0][1] in ("timeout", "upstream_cut")


async def test_two_pictures_are_not_whole_after_the_first() -> None:
    one = wire.event("image_generation.completed", b64_json="AAAA")
    asked = {**ASKED, "n": 2}
    for frames, ends in ((one, ("a", "upstream_cut", "eof")), (one + one, ("a", "ok", ""))):
        async with stage([*sse(frames, end=False), Stall(0.05), Cut()]) as s:
            got = await post(s.url, asked, path="/v1/images/generations")
            assert (b"not complete" in got.body) is (ends[1] != "ok")
            assert s.ends == [ends]


async def test_a_deadline_after_a_whole_answer_is_no_failure_either() -> None:
    async with stage(silent_after(GOOD_BODY), limits=Limits(idle_s=60.0)) as s:
        got = await post(s.url, STREAM, (b"x-request-timeout-ms", b"300"))
        assert (got.body, got.whole) == (GOOD_BODY, True)
        assert s.ends == [("a", "ok", "")]


# Last events that are too long to be looked into.


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/images/generations", wire.event("image_generation.completed", b64_json="A" * 1_400_000)),
        ("/v1/responses", wire.response_end("A" * 1_400_000, 3)),
        ("/v1/responses", wire.response_end("A" * 1_400_000, 3).partition(b"\n")[2]),
    ],
    ids=["a picture", "a response", "a response without its event's name"],
)
async def test_a_stream_whose_last_event_is_long_is_whole(path: str, last: bytes) -> None:
    first = wire.response_text("A") if "responses" in path else wire.event("image_generation.partial_image")
    async with stage(sse(first, last)) as s:
        got = await post(s.url, ASKED, path=path)
        assert (got.body == first + last, got.whole) == (True, True)
        assert s.ends == [("a", "ok", "")]


# Several prompts in one request.


@pytest.mark.parametrize(
    ("prompt", "n", "choices"),
    [
        (["a", "b"], 1, 2),
        (["a", "b"], 2, 4),
        ([[1, 2, 3], [4]], 1, 2),
        (["a"], 1, 1),
        ([1, 2, 3], 1, 1),
        ([], 1, 1),
        ("[", 1, 1),
        ("a", 2, 2),
    ],
)
async def test_a_stream_is_whole_when_each_prompt_has_all_its_answers(prompt: Any, n: int, choices: int) -> None:
    def of(index: int, reason: str | None = None) -> bytes:
        return frame({"choices": [{"index": index, "text": "x", "finish_reason": reason}]})

    frames = [of(index) + of(index, "stop") for index in range(choices)]
    asked = {"model": "tiny", "stream": True, "prompt": prompt, "n": n}
    for count in range(1, choices + 1):
        async with stage(sse(*frames[:count])) as s:
            got = await post(s.url, asked, path="/v1/completions")
            assert ("error" in events(got)[-1]) is (count < choices)
            assert s.ends == [("a", "ok", "") if count == choices else ("a", "upstream_cut", "eof")]


async def test_many_prompts_are_counted_whatever_stands_between_them() -> None:
    body = b'{"model":"tiny","stream":true,"prompt": [ "a, b" ,\n"]"  , "\\"" ]}'
    one = frame({"choices": [{"index": 1, "text": "x", "finish_reason": "stop"}]})
    frames = [one.replace(b'"index":1', b'"index":%d' % index) for index in range(3)]
    for count, kind in ((2, "upstream_cut"), (3, "ok")):
        async with stage(sse(frame({"choices": [{"index": 0, "text": "x"}]}), *frames[:count])) as s:
            await post(s.url, body, path="/v1/completions")
            assert s.ends[0][1] == kind
