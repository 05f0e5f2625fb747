"""OpenTelemetry's GenAI spans as telemetry: which count, about which instance, and what they say."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode

from evenload.api.keys import Refused
from evenload.collector.otlp import Places, answer, events_of, outcome, read_request
from evenload.collector.reports import ReportedFirstToken, ReportedOutcome
from evenload.settings import InstanceSettings
from tests.collector.test_ingest import AUTHORIZED, door

PROTOBUF = "application/x-protobuf"
PLACES = Places(
    [
        InstanceSettings(id="a", url="http://engine-1:8000"),
        InstanceSettings(id="b", url="https://api.example", kind="none"),
        InstanceSettings(id="account-1", url="https://shared.example/one", kind="none"),
        InstanceSettings(id="account-2", url="https://shared.example/two", kind="none"),
    ]
)
AT_A: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "server.address": "engine-1",
    "server.port": 8000,
}
START_NS, END_NS = 1_000_000_000_000, 1_000_900_000_000  # 0.9 s


class _Kept(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Any) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


def exported(*spans: dict[str, Any], kind: SpanKind = SpanKind.CLIENT, error: bool = False) -> bytes:
    """Spans as the maintained exporter writes them."""
    kept, provider = _Kept(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    for attributes in spans:
        span = provider.get_tracer("app").start_span("chat m", kind=kind, attributes=attributes, start_time=START_NS)
        if error:
            span.set_status(Status(StatusCode.ERROR))
        span.end(END_NS)
    return bytes(encode_spans(kept.spans).SerializeToString())


def events(body: bytes, content_type: str = PROTOBUF) -> tuple[list[Any], int, int]:
    found = events_of(read_request(body, content_type)[0], PLACES, END_NS + 50_000_000)
    return found.events, found.spans, found.unplaced


def test_a_span_becomes_a_first_token_and_an_outcome() -> None:
    usage = {"gen_ai.usage.input_tokens": 300, "gen_ai.usage.output_tokens": 40}
    found, spans, unplaced = events(exported(AT_A | usage | {"gen_ai.response.time_to_first_chunk": 0.2}))
    assert (spans, unplaced) == (1, 0)
    assert found == [
        ReportedFirstToken(instance="a", ago_ms=750.0, ttft_ms=200.0, prompt_tokens=300),
        ReportedOutcome(
            instance="a",
            ago_ms=50.0,
            kind="ok",
            ttft_ms=200.0,
            duration_ms=900.0,
            prompt_tokens=300,
            output_tokens=40,
        ),
    ]


def test_json_says_the_same_as_protobuf() -> None:
    attributes: list[dict[str, Any]] = [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "server.address", "value": {"stringValue": "engine-1"}},
        {"key": "server.port", "value": {"intValue": "8000"}},
        {"key": "gen_ai.response.time_to_first_chunk", "value": {"doubleValue": 0.2}},
    ]
    span = {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "name": "chat m",
        "kind": 3,
        "startTimeUnixNano": str(START_NS),
        "endTimeUnixNano": str(END_NS),
        "attributes": attributes,
        "notInTheSchema": 1,
    }
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    plain = {key: AT_A[key] for key in ("gen_ai.operation.name", "server.address", "server.port")}
    assert events(body, "application/json") == events(exported(plain | {"gen_ai.response.time_to_first_chunk": 0.2}))


@pytest.mark.parametrize(
    ("attributes", "instance"),
    [
        ({"server.address": "ENGINE-1"}, "a"),
        ({"server.port": 8001}, None),
        ({"server.address": "elsewhere"}, None),
        ({"server.address": "api.example", "server.port": 443}, "b"),
        ({"server.address": "shared.example", "server.port": 443}, None),
        ({"server.address": "shared.example", "server.port": 443, "evenload.instance": "account-2"}, "account-2"),
        ({"evenload.instance": "nobody"}, None),
    ],
)
def test_the_instance_is_the_one_at_the_address_or_the_one_that_is_named(
    attributes: dict[str, Any], instance: str | None
) -> None:
    found, spans, unplaced = events(exported(AT_A | attributes))
    assert [event.instance for event in found] == ([instance] if instance else [])
    assert (spans, unplaced) == ((1, 0) if instance else (0, 1))


def test_an_address_without_a_port_is_that_of_its_scheme() -> None:
    attributes = {key: value for key, value in AT_A.items() if key != "server.port"}
    assert events(exported(attributes | {"server.address": "api.example"}))[1] == 1


def test_other_spans_and_those_of_routers_are_passed_over() -> None:
    tool, own = AT_A | {"gen_ai.operation.name": "execute_tool"}, AT_A | {"evenload.request.id": "r"}
    assert events(exported(tool, own, {"server.address": "engine-1", "server.port": 8000})) == ([], 0, 0)
    assert events(exported(AT_A, kind=SpanKind.INTERNAL)) == ([], 0, 0)


@pytest.mark.parametrize(
    ("attributes", "failed", "provider", "expected"),
    [
        ({}, False, False, ("ok", 0, "")),
        ({"http.response.status_code": 200}, False, False, ("ok", 200, "")),
        ({}, True, False, ("rejected", 0, "otel_error")),
        ({"error.type": "500"}, True, False, ("http_error", 500, "otel_500")),
        ({"error.type": "503"}, True, False, ("saturated", 503, "otel_503")),
        ({"error.type": "429"}, True, True, ("quota", 429, "otel_429")),
        (
            {"http.response.status_code": 400, "error.type": "BadRequestError"},
            True,
            False,
            ("rejected", 400, "otel_400"),
        ),
        ({"error.type": "openai.APITimeoutError"}, True, False, ("timeout", 0, "otel_error")),
        ({"error.type": "openai.APIConnectionError"}, True, False, ("connect_error", 0, "otel_error")),
        ({"error.type": "openai.RateLimitError"}, True, False, ("saturated", 0, "otel_error")),
        ({"error.type": "openai.RateLimitError"}, True, True, ("quota", 0, "otel_error")),
        ({"error.type": "asyncio.CancelledError"}, True, False, ("client_gone", 0, "otel_error")),
        ({"error.type": "504"}, True, False, ("timeout", 504, "otel_504")),
        ({"error.type": "what a user wrote"}, False, False, ("rejected", 0, "otel_error")),
    ],
)
def test_an_error_blames_the_instance_only_where_something_says_so(
    attributes: dict[str, Any], failed: bool, provider: bool, expected: tuple[str, int, str]
) -> None:
    assert outcome(failed, attributes, provider) == expected


def test_what_is_no_request_is_refused() -> None:
    for body, content_type, status in [
        (b"\xff", PROTOBUF, 400),
        (b"{", "application/json", 400),
        (b"[" * 1000, "application/json", 400),
        (b"[]", "application/json", 400),
        (b' ""', "application/json", 400),
        (b"", "text/plain", 415),
    ]:
        with pytest.raises(Refused) as refused:
            read_request(body, content_type)
        assert refused.value.error.status == status


@given(st.binary(max_size=400), st.sampled_from([PROTOBUF, "application/json"]))
def test_any_bytes_are_a_request_or_refused(body: bytes, content_type: str) -> None:
    try:
        request, kind = read_request(body, content_type)
    except Refused:
        return
    assert answer(kind, events_of(request, PLACES, END_NS))[0] == content_type


async def test_the_maintained_exporter_reports_to_it() -> None:
    """A real OTLPSpanExporter, with compression, over a socket."""
    async with door(traces=True, timeout_s=5) as d:
        exporter = OTLPSpanExporter(
            endpoint=f"{d._url}/v1/traces", headers=AUTHORIZED, compression=Compression.Gzip, timeout=5
        )
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        span = provider.get_tracer("app").start_span("chat m", kind=SpanKind.CLIENT, attributes=AT_A)
        await asyncio.to_thread(span.end)
        await asyncio.to_thread(provider.shutdown)
        assert d.log.written == [("a", 0)]
        assert d.log.batches[0][1].producer == "team/otlp"
        unplaced = exported(AT_A | {"server.port": 1})
        async with d._session.post(
            f"{d._url}/v1/traces", data=unplaced, headers=AUTHORIZED | {"content-type": PROTOBUF}
        ) as got:
            assert got.status == 200
            assert b"no single instance is at engine-1:1" in await got.read()
        assert d.ingest.counts["span_without_instance"] == 1
        assert (await d.post(b"", {}, path="/v1/traces"))[0] == 401
        many = exported(*[AT_A] * 30)
        async with d._session.post(
            f"{d._url}/v1/traces", data=many, headers=AUTHORIZED | {"content-type": PROTOBUF}
        ) as got:
            assert got.status == 200
        assert len(d.log.written) == 31
