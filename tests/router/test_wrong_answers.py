"""A 2xx that is no answer is a failure: nothing of it has been sent, so another instance is asked."""

import asyncio
import json
from typing import Any

import pytest

from evenload.router.fake_wire import END, chunk, error_frame, response, role
from evenload.router.fakes import post
from tests.router.protocols import ASKED
from tests.router.stage import GOOD, GOOD_BODY, PLAIN, STREAM, fleet, stage

OBJECTS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
]
GOOD_OBJECT = b' {"object":"x"}\n'
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
HTML = b"<html><body>Welcome to the load balancer"


@pytest.mark.parametrize("path", OBJECTS)
@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (response(200, b""), "empty_answer"),
        (response(200, b" \n"), "empty_answer"),
        (NO_CONTENT, "empty_answer"),
        (response(200, HTML, content_type="text/html"), "not_json"),
        (response(200, HTML * 5000, content_type="text/html"), "not_json"),
        (response(200, b"\x00" * 200_000, content_type="application/octet-stream"), "not_json"),
        (response(200, b"[]"), "not_json"),
        (response(200, b'"x"'), "not_json"),
        (response(200, b'{"choices":['), "not_json"),
        (response(202, b"accepted"), "not_json"),
    ],
    ids=["empty", "blank", "204", "html", "long html", "bytes", "list", "string", "half", "202"],
)
async def test_what_is_no_json_object_is_asked_for_elsewhere(path: str, bad: bytes, cause: str) -> None:
    async with stage([bad], [response(200, GOOD_OBJECT)]) as s:
        got = await post(s.url, {**ASKED, "stream": False}, path=path)
        assert (got.status, got.body) == (200, GOOD_OBJECT)
        assert s.ends == [("a", "http_error", cause), ("b", "ok", "")]


@pytest.mark.parametrize("body", [STREAM, PLAIN], ids=["stream", "plain"])
@pytest.mark.parametrize(("bad", "code"), [(b"", "upstream_empty_answer"), (HTML, "upstream_not_json")])
async def test_when_nobody_has_an_answer_the_client_is_told_why(body: Any, bad: bytes, code: str) -> None:
    async with stage([response(200, bad, content_type="text/html")]) as s:
        got = await post(s.url, body)
        assert (got.status, got.error["code"]) == (502, code)
        assert HTML not in got.body


@pytest.mark.parametrize(
    "body",
    [
        b'{"usage":5}',
        b'{"usage":{"prompt_tokens":"many"},"choices":[]}',
        b'{"data":[{"embedding":[NaN,-Infinity]}]}',
        b'{"choices":[{"message":{"content":"\xff\xfe"}}]}',
        b'\xef\xbb\xbf{"choices":[]}',
        b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
    ids=["usage of another type", "counts of another type", "NaN", "no UTF-8", "a BOM", "deep"],
)
async def test_an_object_that_is_odd_is_an_answer_all_the_same(body: bytes) -> None:
    async with stage([response(200, body)]) as s:
        got = await post(s.url, PLAIN)
        assert (got.status, got.body) == (200, body)
        assert s.ends == [("a", "ok", "")]


@pytest.mark.parametrize("body", [b"[1,2]", b"plain text", b""])
async def test_endpoints_whose_answers_are_no_objects_everywhere_pass_what_comes(body: bytes) -> None:
    async with stage([response(200, body)]) as s:
        assert (await post(s.url, {"model": "tiny"}, path="/rerank")).body == body
        assert s.ends == [("a", "ok", "")]


@pytest.mark.behind_the_server
async def test_an_instance_that_gives_a_wrong_200_at_once_loses_its_traffic() -> None:
    good = [response(200, json.dumps({"choices": []}).encode())]
    async with fleet([response(200, HTML, content_type="text/html")], good) as f:
        for _ in range(60):
            assert (await post(f.url, PLAIN)).status == 200
        assert f.requests("a") < f.requests("b") / 2
        assert f.raw_score("a") < f.raw_score("b")


# Heads that are written in another way, or say too much.


@pytest.mark.parametrize(
    "line",
    [
        b"content-type: Text/Event-Stream",
        b"content-type: TEXT/EVENT-STREAM;charset=utf-8\r\ncontent-encoding: Identity",
    ],
)
async def test_a_stream_is_one_in_any_case(line: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + line + b"\r\ntransfer-encoding: chunked\r\n\r\n"
    broken = [head, chunk(role()), chunk(error_frame(500, "boom")), END]
    async with stage(broken, [head, *GOOD[1:]]) as s:
        got = await post(s.url, STREAM)
        assert (got.status, got.body) == (200, GOOD_BODY)
        assert s.ends == [("a", "stream_error", "http_500"), ("b", "ok", "")]
        assert s.dispatcher.leases[1].first_token_ms is not None


@pytest.mark.parametrize("kind", [b"application/json", b"audio/mpeg"])
async def test_a_204_that_is_passed_on_has_no_length_and_leaves_the_connection_sound(kind: bytes) -> None:
    bad = b"HTTP/1.1 204 No Content\r\ncontent-type: " + kind + b"\r\ncontent-length: 5\r\n\r\n"
    async with stage([[bad], [response(200, b"ID3", content_type="audio/mpeg")]]) as s:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(s.url.rsplit(":", 1)[1]))
        body = b'{"model":"tiny"}'
        asked = b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        writer.write(asked)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 204 ")
        assert b"content-length" not in head.lower()
        assert b"transfer-encoding" not in head.lower()
        writer.write(asked)  # the next head follows at once
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await reader.readexactly(3) == b"ID3"
        writer.close()
