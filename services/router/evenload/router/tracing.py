"""OpenTelemetry spans, with `router.tracing: otel` and the extra `otel`; imported only then, so it costs nothing else.

    POST /v1/chat/completions     SERVER, child of the client's traceparent
      chat my-model               CLIENT, one per attempt; what goes upstream continues it

The attempts carry the GenAI semantic conventions (https://opentelemetry.io/docs/specs/semconv/gen-ai/) and Evenload's
own `evenload.*`. No prompt, no answer, no key and no address is in any. Where spans go is said by OpenTelemetry's own
variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME` ...).

The whole is wrapped round the data plane, which knows nothing of it: the proxy, the dispatcher, its leases.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from evenload.schemas import __version__
from evenload.schemas.telemetry import OutcomeKind

from .endpoints import ENDPOINTS
from .headers import Headers
from .ports import Ask, Dispatcher, Lease
from .trace_context import NAMES, checked
from .upstream import Response

# All others go by the endpoint's own name, for which the conventions have none.
OPERATIONS = {"chat/completions": "chat", "responses": "chat", "messages": "chat", "completions": "text_completion"}
CLOSE_S = 5.0
_propagator = TraceContextTextMapPropagator()


class Tracing:
    """One router's spans.

    Args:
        router: its name.
        processor: takes the spans; by default they go out by OTLP over HTTP, in batches, from a thread.
    """

    def __init__(self, router: str, processor: SpanProcessor | None = None) -> None:
        attributes = {SERVICE_INSTANCE_ID: router}
        if not os.environ.get("OTEL_SERVICE_NAME"):
            attributes[SERVICE_NAME] = "evenload-router"
        self._provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("evenload.router", __version__)

    def front(self, app: Callable[..., Awaitable[None]]) -> "TracedApp":
        """Wrap the server's application."""
        return TracedApp(app, self._tracer)

    def dispatcher(self, inner: Dispatcher) -> "TracedDispatcher":
        """Wrap the proxy's dispatcher."""
        return TracedDispatcher(inner, self._tracer)

    async def close(self) -> None:
        """Send what there is, within some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.to_thread(self._provider.shutdown)


class TracedApp:
    """ASGI callable: a SERVER span round each request to a hot endpoint."""

    def __init__(self, app: Callable[..., Awaitable[None]], tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Serve one scope."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in ENDPOINTS:
            return await self._app(scope, receive, send)
        carrier = {name.decode("ascii"): value.decode("ascii") for name, value in _context_of(scope["headers"])}
        span = self._tracer.start_span(
            f"POST {scope['path']}",
            _propagator.extract(carrier),
            SpanKind.SERVER,
            {"http.request.method": "POST", "http.route": scope["path"], "url.path": scope["path"]},
        )

        async def noting(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                _note_response(span, message)
            await send(message)

        with trace.use_span(span, end_on_exit=True, record_exception=False):
            # Without the client's wire, so that the answer passes here.
            return await self._app({**scope, "extensions": {}}, receive, noting)


class TracedDispatcher:
    """A dispatcher whose attempts are CLIENT spans; all else is the inner one's."""

    def __init__(self, inner: Dispatcher, tracer: Tracer) -> None:
        self._inner = inner
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def choose(self, request: Ask, tried: tuple[str, ...], attempt: int) -> "TracedLease":
        """Choose and book; raises what the inner one raises."""
        lease = self._inner.choose(request, tried, attempt)
        operation = OPERATIONS.get(request.endpoint, request.endpoint)
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": lease.upstream.provider or "openai",  # for engines: whose API they speak
            "gen_ai.request.model": request.model,
            "evenload.request.id": request.request_id,
            "evenload.instance": lease.instance,
            "evenload.attempt": attempt,
            "evenload.prompt_tokens.estimated": request.prompt_tokens,
        }
        if request.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = request.max_tokens
        name = f"{operation} {request.model}"
        return TracedLease(lease, self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes))


class TracedLease:
    """A lease that tells its span what it is told; its upstream is told of the span."""

    def __init__(self, lease: Lease, span: Span) -> None:
        self._lease = lease
        self._span = span
        self.instance = lease.instance
        self.attempt = lease.attempt
        self.expected_ms = lease.expected_ms
        self.upstream: Any = _TracedUpstream(lease.upstream, span)

    def first_token(self, ttft_ms: float) -> None:
        """Note the first content token."""
        self._span.set_attribute("gen_ai.response.time_to_first_chunk", ttft_ms / 1000.0)
        self._lease.first_token(ttft_ms)

    def finish(
        self, kind: OutcomeKind, *, status: int, cause: str, ttft_ms: float | None, output_tokens: int, **more: Any
    ) -> None:
        """End the span with the lease."""
        span = self._span
        span.set_attribute("evenload.outcome", kind)
        if status:
            span.set_attribute("http.response.status_code", status)
        if output_tokens:
            span.set_attribute("gen_ai.usage.output_tokens", output_tokens)
        if kind not in ("ok", "rejected", "client_gone"):
            span.set_attribute("error.type", cause or kind)
            span.set_status(Status(StatusCode.ERROR))
        span.end()
        self._lease.finish(kind, status=status, cause=cause, ttft_ms=ttft_ms, output_tokens=output_tokens, **more)


class _TracedUpstream:
    """Sends the attempt's own trace context in the place of the client's."""

    def __init__(self, upstream: Any, span: Span) -> None:
        self._upstream = upstream
        self._span = span

    def __getattr__(self, name: str) -> Any:
        return getattr(self._upstream, name)

    async def request(self, method: str, path: bytes, headers: Headers, body: bytes) -> Response:
        """Send a request; as `Upstream.request`."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, trace.set_span_in_context(self._span))
        kept = [header for header in headers if header[0] not in NAMES]
        kept += [(name.encode("ascii"), value.encode("ascii")) for name, value in carrier.items()]
        response: Response = await self._upstream.request(method, path, kept, body)
        return response


def _context_of(headers: Headers) -> Headers:
    return checked([(name, value) for name, value in headers if name in NAMES])


def _note_response(span: Span, message: MutableMapping[str, Any]) -> None:
    status = message["status"]
    span.set_attribute("http.response.status_code", status)
    for name, value in message["headers"]:
        if name == b"x-request-id":
            span.set_attribute("evenload.request.id", value.decode("ascii"))
    if status >= 500:
        span.set_attribute("error.type", str(status))
        span.set_status(Status(StatusCode.ERROR))
