"""A 2xx that is no answer is a failure: nothing of it has been sent, so another instance is asked."""

import json
from typing import Any

import pytest

from evenload.router.fake_wire import response
from evenload.router.fakes import post
from tests.router.stage import PLAIN, STREAM, fleet, stage
from tests.router.test_endpoints import ASKED

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
