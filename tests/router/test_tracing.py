"""OpenTelemetry spans: what they say, whose children they are, and that nothing private is in them."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from evenload.router.fake_wire import error
from evenload.router.fakes import post
from evenload.router.tracing import Tracing
from tests.router.stage import GOOD, GOOD_BODY, STREAM, Fleet, fleet, replica, until
from tests.router.test_trace_context import PARENT, SPAN, TRACE

CONTENT = {**STREAM, "max_tokens": 7, "messages": [{"role": "user", "content": "my secret prompt"}]}


class Traced:
    """Spans that were made, and a fleet that makes them."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing("router-1", SimpleSpanProcessor(self.exporter))

    async def spans(self, count: int) -> list[ReadableSpan]:
        """All of them, oldest start first."""
        await until(lambda: len(self.exporter.get_finished_spans()) == count)
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


def context(f: Fleet, name: str) -> tuple[str, str]:
    """Trace and span id that an engine was given."""
    parent = f.engines[name].requests[-1].headers[b"traceparent"].decode()
    return parent.split("-")[1], parent.split("-")[2]


async def test_a_request_is_a_span_and_each_attempt_is_its_child_which_the_engine_continues() -> None:
    traced = Traced()
    async with (
        fleet([error(500, "boom")], GOOD) as plain,
        replica(plain.settings, plain.engines, tracing=traced.tracing) as f,
    ):
        answers = 0
        while not f.requests("a"):  # whoever is asked first
            traced.exporter.clear()
            headers = (b"traceparent", PARENT), (b"tracestate", b"a=1"), (b"authorization", b"Bearer my-key")
            assert (await post(f.url, CONTENT, *headers)).body == GOOD_BODY
            answers += 1
            assert answers < 50
        served, first, second = await traced.spans(3)
        assert (served.name, served.kind) == ("POST /v1/chat/completions", SpanKind.SERVER)
        assert served.parent is not None
        assert f"{served.parent.span_id:016x}" == SPAN.decode()
        assert served.attributes is not None
        assert served.attributes["http.response.status_code"] == 200
        assert str(served.attributes["evenload.request.id"]).startswith("req-")
        for number, (attempt, name) in enumerate(((first, "a"), (second, "b"))):
            assert (attempt.name, attempt.kind) == ("chat tiny", SpanKind.CLIENT)
            assert attempt.parent is not None
            assert served.context is not None
            assert attempt.parent.span_id == served.context.span_id
            assert attempt.attributes is not None
            assert attempt.attributes["evenload.instance"] == name
            assert attempt.attributes["evenload.attempt"] == number
            assert attempt.attributes["gen_ai.request.max_tokens"] == 7
            assert attempt.context is not None
            assert context(f, name) == (TRACE.decode(), f"{attempt.context.span_id:016x}")
            assert f.engines[name].requests[-1].headers[b"tracestate"] == b"a=1"
        assert first.attributes is not None
        assert (first.attributes["error.type"], first.status.status_code) == ("http_500", StatusCode.ERROR)
        assert second.attributes is not None
        assert second.attributes["gen_ai.usage.output_tokens"] == 2
        assert float(str(second.attributes["gen_ai.response.time_to_first_chunk"])) > 0
        told = "".join(span.to_json() for span in (served, first, second))
        for secret in ("my secret prompt", "my-key", "Hello", "127.0.0.1"):
            assert secret not in told


async def test_a_request_without_valid_context_begins_a_trace_and_one_that_is_not_sampled_stays_so() -> None:
    traced = Traced()
    async with fleet(GOOD) as plain, replica(plain.settings, plain.engines, tracing=traced.tracing) as f:
        await post(f.url, STREAM, (b"traceparent", b"00-oops"), (b"tracestate", b"a=1"))
        assert context(f, "a")[0] != TRACE.decode()
        assert b"tracestate" not in f.engines["a"].requests[-1].headers
        await traced.spans(2)
        await post(f.url, STREAM, (b"traceparent", PARENT[:-1] + b"0"))
        assert context(f, "a")[0] == TRACE.decode()
        assert f.engines["a"].requests[-1].headers[b"traceparent"].endswith(b"-00")
        await asyncio.sleep(0.05)
        assert len(traced.exporter.get_finished_spans()) == 2


async def test_refusals_and_those_who_leave_end_their_spans_too() -> None:
    traced = Traced()
    async with fleet(None) as plain, replica(plain.settings, plain.engines, tracing=traced.tracing) as f:
        assert (await post(f.url, STREAM)).status == 502
        assert (await post(f.url, b"{")).status == 400
        spans = await traced.spans(5)
        statuses = [
            span.attributes["http.response.status_code"]
            for span in spans
            if span.kind is SpanKind.SERVER and span.attributes
        ]
        assert statuses == [502, 400]
        assert [span.status.status_code for span in spans if span.kind is SpanKind.SERVER] == [
            StatusCode.ERROR,
            StatusCode.UNSET,
        ]


class _Collector(BaseHTTPRequestHandler):
    bodies: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        self.bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


async def test_spans_go_out_by_otlp_when_the_settings_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = type("Handler", (_Collector,), {"bodies": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    try:
        async with fleet(GOOD, router={"tracing": "otel"}) as f:
            assert (await post(f.url, STREAM)).body == GOOD_BODY
            await until(lambda: handler.bodies)  # type: ignore[attr-defined]
            assert f.router.tracing is not None
            await f.router.tracing.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    path, body = handler.bodies[0]  # type: ignore[attr-defined]
    assert path == "/v1/traces"
    assert b"chat tiny" in body
    assert b"evenload-router" in body
    assert json.dumps(STREAM["messages"][0]["content"]).strip('"').encode() not in body  # type: ignore[index]
