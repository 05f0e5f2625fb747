"""Errors that Evenload itself gives, over real sockets: the API's form, a stable code, the request id, what to do."""

import json
from typing import Any

import pytest

from evenload.router.fake_wire import (
    DONE,
    SSE_HEAD,
    Cut,
    Stall,
    chunk,
    content,
    error,
    error_frame,
    response,
    role,
    sse,
)
from evenload.router.fakes import FakeDispatcher, Got, post, serve
from evenload.router.limits import Limits
from evenload.router.ports import Ask
from evenload.router.proxy import Proxy
from evenload.router.reload import reload
from tests.router.stage import BUSY, GOOD, GOOD_BODY, JSON_ANSWER, PLAIN, STREAM, events, fleet, inner_app, stage, until

ID = (b"x-request-id", b"mine-1")
FORM = {"message", "type", "param", "code"}


def check(got: Got, status: int, code: str) -> None:
    """Assert the form that all own errors have."""
    body = json.loads(got.body)
    assert (got.status, got.headers[b"content-type"]) == (status, b"application/json")
    assert set(body) == {"error", "request_id"}
    assert set(body["error"]) == FORM
    assert body["error"]["code"] == code
    assert body["error"]["type"] == ("invalid_request_error" if status < 429 else "api_error")
    assert len(body["error"]["message"]) > 30
    assert body["request_id"].encode() == got.headers[b"x-request-id"]


@pytest.mark.parametrize(
    ("script", "body", "status", "code"),
    [
        (GOOD, b"{", 400, "invalid_json"),
        (GOOD, {"model": 5}, 400, "invalid_value"),
        (GOOD, {"model": "m", "x": "x" * 3000}, 413, "request_too_large"),
        (GOOD, {"model": "nobody"}, 404, "model_not_found"),
        (None, STREAM, 502, "upstream_refused"),
        ([Cut()], STREAM, 502, "upstream_eof"),
        ([Stall()], STREAM, 504, "upstream_first_token"),
        ([Stall()], PLAIN, 504, "upstream_answer"),
        ([error(503, BUSY)], STREAM, 503, "overloaded"),
        ([error(429, "queue is full")], STREAM, 429, "overloaded"),
        (sse(error_frame(503, BUSY), DONE), STREAM, 503, "overloaded"),
        ([error(429, "Rate limit of org-secret", code="insufficient_quota")], STREAM, 429, "provider_quota"),
    ],
)
async def test_each_has_the_apis_form_and_the_request_id(script: Any, body: Any, status: int, code: str) -> None:
    limits = Limits(body_bytes_max=2000, first_token_s=0.1, answer_s=0.1, back_off_s=0.001)
    async with stage(script, limits=limits, models=["tiny"]) as s:
        got = await post(s.url, body, ID)
        check(got, status, code)
        assert got.headers[b"x-request-id"] == b"mine-1"
        assert b"127.0.0.1" not in got.body
        assert b"org-secret" not in got.body
        assert b"x-evenload-instance" not in got.headers
        if code in ("overloaded", "provider_quota"):
            assert int(got.headers[b"retry-after"]) >= 1


async def test_the_event_that_ends_a_broken_stream_has_the_request_id_too() -> None:
    async with stage([SSE_HEAD, chunk(role() + content("x")), Stall(0.02), Cut()]) as s:
        last = events(await post(s.url, STREAM, ID))[-1]
        assert (set(last), set(last["error"]), last["request_id"]) == ({"error", "request_id"}, FORM, "mine-1")


@pytest.mark.parametrize(
    ("script", "body", "status", "kind", "code"),
    [
        (GOOD, b"{", 400, "invalid_request_error", "invalid_json"),
        (GOOD, {"model": "m", "x": "x" * 3000}, 413, "request_too_large", "request_too_large"),
        (GOOD, {"model": "nobody"}, 404, "not_found_error", "model_not_found"),
        (None, STREAM, 502, "api_error", "upstream_refused"),
        ([Stall()], STREAM, 504, "timeout_error", "upstream_first_token"),
        ([error(503, BUSY)], STREAM, 503, "overloaded_error", "overloaded"),
        ([error(429, "queue is full")], STREAM, 429, "rate_limit_error", "overloaded"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_anthropics_clients_get_their_own_form(
    *, path: str, script: Any, body: Any, status: int, kind: str, code: str
) -> None:
    limits = Limits(body_bytes_max=2000, first_token_s=0.1, answer_s=0.1, back_off_s=0.001)
    async with stage(script, limits=limits, models=["tiny"]) as s:
        got = await post(s.url, body, ID, path=path)
        told = json.loads(got.body)
        assert (got.status, set(told), told["type"]) == (status, {"type", "error", "request_id"}, "error")
        assert (told["error"]["type"], told["error"]["code"]) == (kind, code)
        assert len(told["error"]["message"]) > 30
        assert told["request_id"] == "mine-1"
        assert got.headers[b"request-id"] == got.headers[b"x-request-id"] == b"mine-1"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/messages", 405, "method_not_allowed"),
        ("POST", "/v1/messages/batches", 404, "not_found"),
        ("GET", "/v1/files", 404, "not_found"),
    ],
)
async def test_what_is_not_served_is_refused_in_anthropics_form_to_its_clients(
    method: str, path: str, status: int, code: str
) -> None:
    async with fleet(GOOD) as f:
        got = await post(f.url, b"", ID, (b"anthropic-version", b"2023-06-01"), method=method, path=path)
        told = json.loads(got.body)
        assert (got.status, told["type"], told["error"]["code"]) == (status, "error", code)
        assert got.headers[b"request-id"] == b"mine-1"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/", 404, "not_found"),
        ("GET", "/v1/responses/resp_1", 404, "responses_not_stored"),
        ("DELETE", "/v1/responses/resp_1", 404, "responses_not_stored"),
        ("POST", "/v1/responses/resp_1/cancel", 404, "responses_not_stored"),
        ("GET", "/v1/responses", 405, "method_not_allowed"),
        ("GET", "/v1/models/nobody", 404, "model_not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_served_is_refused_in_the_apis_form(method: str, path: str, status: int, code: str) -> None:
    async with fleet(GOOD) as f:
        check(await post(f.url, b"", ID, method=method, path=path), status, code)
        got = await post(f.url, b"", method=method, path=path)
        check(got, status, code)
        assert (b"allow" in got.headers) == (status == 405)


@pytest.mark.parametrize("body", [STREAM, PLAIN])
async def test_an_answer_names_its_instance_unless_it_is_told_not_to(body: Any) -> None:
    good = GOOD if body is STREAM else [response(200, JSON_ANSWER)]
    for named in (True, False):
        async with fleet([good, [error(400, "bad")], [Cut()]], router={"instance_header": named}) as f:
            for status in (200, 400):
                got = await post(f.url, body)
                assert (got.status, got.headers.get(b"x-evenload-instance")) == (status, b"a" if named else None)
            assert b"x-evenload-instance" not in (await post(f.url, body)).headers
            after = f.settings.router.model_copy(update={"instance_header": not named})
            assert reload(f.router, f.settings.model_copy(update={"router": after}), {}) == []
            assert f.router.asgi.names_instance is not named


class _Broken(FakeDispatcher):
    def choose(self, request: Ask, tried: tuple[str, ...], attempt: int) -> Any:
        raise ZeroDivisionError


async def test_a_fault_of_the_router_itself_is_told_as_such(http_server: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(Proxy(inner_app, _Broken({})), http_server) as url:
        got = await post(url, STREAM, ID)
        check(got, 500, "internal_error")
    if http_server != "uvicorn":  # which has its own log
        assert "ZeroDivisionError" in caplog.text
        assert "request mine-1" in caplog.text, "by which a client's word of it is found"


# Load and quota: when to come back.


async def test_when_all_are_busy_the_answer_says_when_the_first_has_cooled() -> None:
    slow, soon = error(429, "queue is full", ("retry-after", "20")), error(503, BUSY, ("retry-after", "7"))
    async with fleet([slow], [soon], [slow]) as f:
        for _ in range(3):
            got = await post(f.url, STREAM)
            check(got, got.status, "overloaded")
            assert got.status in (429, 503)
        assert all(f.state(name).cooling_until_ms for name in "abc")
        assert got.headers[b"retry-after"] in (b"6", b"7")  # rounded up, and whole
        assert {f.state(name).errors for name in "abc"} == {0}


@pytest.mark.behind_the_server
async def test_a_busy_instance_beside_a_dead_one_is_told_as_load_each_time() -> None:
    async with fleet([error(429, "Too many requests in queue", ("retry-after", "1"))], None) as f:
        for _ in range(6):
            got = await post(f.url, STREAM)
            check(got, 429, "overloaded")
            assert got.headers[b"retry-after"] == b"1"


@pytest.mark.behind_the_server
async def test_busy_instances_are_asked_all_the_same_when_nobody_else_is_there() -> None:
    busy = error(429, "queue is full", ("retry-after", "20"))
    async with fleet([[busy], GOOD], [[busy], GOOD]) as f:
        assert (await post(f.url, STREAM)).status == 429
        assert (await post(f.url, STREAM)).body == GOOD_BODY


@pytest.mark.behind_the_server
async def test_providers_whose_quota_is_used_up_are_not_asked_until_they_have_cooled() -> None:
    refusal = error(429, "You exceeded your current quota", ("retry-after-ms", "1400"), code="insufficient_quota")
    async with fleet([[refusal], GOOD]) as f:
        got = await post(f.url, STREAM)
        check(got, 429, "provider_quota")
        assert got.headers[b"retry-after"] == b"2"
        got = await post(f.url, STREAM)
        check(got, 429, "provider_quota")
        assert got.headers[b"retry-after"] in (b"1", b"2")
        assert f.requests("a") == 1
        await until(lambda: f.router.dispatcher.retry_after_s("tiny") is None)
        assert (await post(f.url, STREAM)).body == GOOD_BODY


@pytest.mark.behind_the_server
async def test_retries_are_a_share_of_the_traffic() -> None:
    bad = [error(500, "boom")]
    async with fleet(bad, bad, bad, retries={"share": 0.1, "per_s_min": 0}) as f:
        for _ in range(300):
            assert (await post(f.url, STREAM)).status == 500
        asked = sum(f.requests(name) for name in "abc")
        assert 400 <= asked <= 300 + 100 + 30  # of 900: what was saved up, and a tenth
        assert (await f.metrics())['evenload_router_retries_withheld{pool="p"}'] > 100
