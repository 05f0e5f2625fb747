"""Which headers pass, both ways."""

import pytest

from evenload.router.headers import request_headers, request_id_of, response_headers


def test_the_clients_credential_never_goes_upstream() -> None:
    headers = [(b"authorization", b"Bearer sk-1"), (b"cookie", b"a=b"), (b"x-api-key", b"k"), (b"api-key", b"k")]
    names = {name for name, _ in request_headers(headers, b"r")}
    assert names == {b"accept-encoding", b"x-request-id"}


@pytest.mark.parametrize(
    "name",
    [b"openai-organization", b"openai-project", b"openai-api-key", b"anthropic-api-key", b"anthropic-workspace-id",
     b"x-goog-api-key", b"x-amz-security-token", b"x-amzn-bedrock-guardrailidentifier"],
)  # fmt: skip
def test_nothing_that_says_on_whose_account_goes_upstream(name: bytes) -> None:
    assert name not in dict(request_headers([(name, b"org-mine")], b"r"))


def test_what_engines_need_goes_upstream() -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"accept", b"*/*"),
        (b"traceparent", b"00-1"),
        (b"openai-beta", b"x"),
        (b"anthropic-beta", b"x"),
        (b"anthropic-version", b"2023-06-01"),
    ]
    assert request_headers(headers, b"r")[:6] == headers


@pytest.mark.parametrize(
    "name", [b"connection", b"keep-alive", b"te", b"transfer-encoding", b"upgrade", b"host", b"expect"]
)
def test_hop_by_hop_headers_stay(name: bytes) -> None:
    assert name not in dict(request_headers([(name, b"x")], b"r"))
    assert name not in dict(response_headers([(name, b"x")]))


def test_headers_named_by_connection_stay_although_they_are_allowed() -> None:
    headers = [(b"connection", b"close, Traceparent"), (b"traceparent", b"00-1"), (b"tracestate", b"a=b")]
    assert b"traceparent" not in dict(request_headers(headers, b"r"))
    assert b"tracestate" in dict(request_headers(headers, b"r"))
    assert b"vary" not in dict(response_headers([(b"vary", b"Origin"), (b"connection", b"vary")]))


def test_responses_lose_what_is_the_upstreams_own() -> None:
    headers = [(b"server", b"uvicorn"), (b"date", b"x"), (b"set-cookie", b"a"), (b"x-powered-by", b"y")]
    assert response_headers(headers) == []
    plain = [(b"openai-processing-ms", b"7"), (b"openai-version", b"2020-10-01"), (b"retry-after", b"1")]
    assert response_headers(plain) == plain


@pytest.mark.parametrize(
    "name",
    [b"openai-organization", b"openai-project", b"openai-model", b"x-ratelimit-limit-requests",
     b"x-ratelimit-remaining-tokens", b"anthropic-ratelimit-requests-limit", b"anthropic-organization-id"],
)  # fmt: skip
def test_nothing_of_the_routers_own_account_comes_down(name: bytes) -> None:
    assert response_headers([(name, b"x")]) == []


def test_the_length_goes_when_the_body_may_change() -> None:
    headers = [(b"content-length", b"3"), (b"content-type", b"a/b")]
    assert response_headers(headers) == headers
    assert response_headers(headers, with_length=False) == headers[1:]


@pytest.mark.parametrize(
    ("value", "kept"),
    [(b"abc-1", True), (b"x" * 128, True), (b"x" * 129, False), (b"", False), (b"a b", False), (b"\xe9", False)],
)
def test_a_request_id_is_kept_if_it_is_plain(value: bytes, kept: bool) -> None:
    assert request_id_of({b"x-request-id": value}) == (value if kept else None)
