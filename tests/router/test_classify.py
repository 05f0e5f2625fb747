"""Errors of real engines and providers, and what each says about the instance."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.router.classify import classify, classify_error, retry_after_ms


def body(message: str = "", kind: str | None = None, code: object = None) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


@pytest.mark.parametrize(
    ("name", "status", "kind", "cause"),
    [
        ("vllm-0.32.0-cpu/err_400_context", 400, "rejected", "http_400"),
        ("vllm-0.32.0-cpu/err_400_max_tokens", 400, "rejected", "http_400"),
        ("vllm-0.32.0-cpu/err_404_model", 404, "rejected", "http_404"),
        ("vllm-0.32.0-cpu/err_404_path", 404, "rejected", "http_404"),
        ("vllm-0.32.0-cpu/err_badjson", 400, "rejected", "http_400"),
        ("vllm-0.32.0-cpu/err_missing_messages", 400, "rejected", "http_400"),
        ("vllm-0.32.0-cpu/err_validation", 400, "rejected", "http_400"),
        ("vllm-0.32.0-cpu/err_queue_full_json", 503, "saturated", "engine_busy"),
        ("vllm-0.32.0-cpu/err_queue_full_stream", 503, "saturated", "engine_busy"),
        ("llm-d-inference-sim/err_queue_full", 429, "saturated", "engine_busy"),
    ],
)
def test_captured_errors(shared_dir: Path, name: str, status: int, kind: str, cause: str) -> None:
    captured = shared_dir / "captures" / name
    assert f" {status} ".encode() in captured.with_suffix(".headers").read_bytes()
    verdict = classify(status, [], captured.with_suffix(".body").read_bytes())
    assert (verdict.kind, verdict.cause, verdict.retriable) == (kind, cause, kind != "rejected")


@pytest.mark.parametrize(
    ("status", "data", "kind", "cause", "retriable"),
    [
        (429, body("KV cache is exhausted"), "saturated", "kv_exhausted", True),
        (503, body("No free KV cache blocks"), "saturated", "kv_exhausted", True),
        (503, body("The server is overloaded or not ready yet."), "saturated", "engine_busy", True),
        (503, body("Loading model", "unavailable_error", 503), "http_error", "not_ready", True),
        (503, b"upstream connect error", "http_error", "http_503", True),
        (529, body("Overloaded", "overloaded_error"), "saturated", "engine_busy", True),
        (429, b"", "saturated", "http_429", True),
        (429, body("Rate limit exceeded.", "rate_limit_error", "rate_limit_exceeded"), "quota", "rate_limit", True),
        (429, body("Rate limit reached for m on requests per min (RPM)"), "quota", "rate_limit", True),
        (429, body("You exceeded your current quota", code="insufficient_quota"), "quota", "provider_quota", True),
        (400, body("Access denied, account overdue", code="Arrearage"), "quota", "provider_quota", True),
        (400, body("Your credit balance is too low to access the API"), "quota", "provider_quota", True),
        (403, body("overdue", code="AccountOverdueError"), "quota", "provider_quota", True),
        (402, body("Insufficient Balance"), "quota", "provider_quota", True),
        (429, body("Rate limit for this key reached"), "rejected", "key_limit", False),
        (429, body("too fast", "key_rate_limit"), "rejected", "key_limit", False),
        (401, body("Incorrect API key"), "http_error", "unauthorized", True),
        (422, b'{"detail":[{"loc":["body"]}]}', "rejected", "http_422", False),
        (408, b"", "http_error", "http_408", True),
        (500, body("cannot schedule new futures after shutdown"), "http_error", "draining", True),
        (500, body("EngineCore encountered an issue. See stack trace"), "http_error", "engine_dead", True),
        (500, b"Internal Server Error", "http_error", "http_500", True),
        (502, b"<html>", "http_error", "http_502", True),
        (302, b"", "http_error", "http_302", True),
    ],
)  # fmt: skip
def test_errors_are_typed(status: int, data: bytes, kind: str, cause: str, retriable: bool) -> None:
    verdict = classify(status, [], data)
    assert (verdict.kind, verdict.cause, verdict.retriable) == (kind, cause, retriable)


def test_a_client_cannot_cool_an_instance_by_what_the_engine_echoes() -> None:
    echo = body("1 validation error: input: 'You exceeded your current quota. Insufficient balance'")
    assert classify(400, [], echo).kind == "rejected"


def test_a_503_that_asks_to_wait_is_load() -> None:
    verdict = classify(503, [(b"retry-after", b"2")], b"later")
    assert (verdict.kind, verdict.retry_after_ms) == ("saturated", 2000.0)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([(b"retry-after", b"3")], 3000.0),
        ([(b"retry-after", b"0.5")], 500.0),
        ([(b"retry-after", b"1"), (b"retry-after-ms", b"700")], 700.0),
        ([(b"retry-after-ms", b"soon"), (b"retry-after", b"2")], 2000.0),
        ([(b"retry-after", b"Thu, 01 Jan 1970 00:01:40 GMT")], 90_000.0),
        ([(b"retry-after", b"Thu, 01 Jan 1970 00:00:05 GMT")], 0.0),
        ([(b"retry-after", b"-1")], None),
        ([(b"retry-after", b"nan")], None),
        ([(b"retry-after", b"tomorrow")], None),
        ([(b"retry-after", b"\xff")], None),
        ([(b"retry-after", b"9" * 40)], 1e9),
        ([(b"retry-after", b"Mon, 01 Jan 99999999999999 00:00:00 GMT")], None),
        ([(b"retry-after", b"Mon, 01 Jan 2024 00:00:00 +99999999999999")], None),
        ([(b"retry-after", b"Mon, 01 Jan 2024 99999999999999:00:00 GMT")], None),
        ([(b"retry-after", b"Fri, 31 Dec 9999 23:59:59 -2359")], 1e9),
    ],
)
def test_retry_after_in_all_its_forms(headers: list[tuple[bytes, bytes]], expected: float | None) -> None:
    assert retry_after_ms(headers, now_s=10.0) == expected


_NUMBERS = st.sampled_from(["0", "1", "31", "99", "1970", "9999", "-1", "9" * 14, "9" * 400, ""])


@given(
    st.binary(max_size=60)
    | st.text("Jan0123456789:,+-. GMTZ", max_size=60).map(str.encode)
    | st.tuples(*[_NUMBERS] * 6).map(lambda n: "Mon, {} Jan {} {}:{}:{} +{}".format(*n).encode())
)
def test_any_retry_after_is_a_wait_or_none(value: bytes) -> None:
    for name in (b"retry-after", b"retry-after-ms"):
        wait_ms = retry_after_ms([(name, value)], now_s=10.0)
        assert wait_ms is None or 0.0 <= wait_ms <= 1e9


@given(st.integers(300, 999), st.binary(max_size=200))
def test_any_body_gets_a_verdict(status: int, data: bytes) -> None:
    verdict = classify(status, [], data)
    assert len(verdict.cause) <= 64
    assert verdict.kind != "ok"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["code", "type", "message"]), inner)
        ),
    )
)
def test_any_error_object_gets_a_verdict(error: object) -> None:
    verdict, code, short_type = classify_error(error)
    assert verdict.kind != "ok"
    assert code is None or 400 <= code <= 599
    assert len(short_type) <= 40
