"""OpenTelemetry's GenAI spans as telemetry. Pure: a request of OTLP/HTTP in, events out. Needs the extra `otel`.

A span counts if it is of kind CLIENT and `gen_ai.operation.name` is one that engines serve. Its instance is the one at
`server.address` and `server.port`, or the one that `evenload.instance` names. Routers' own spans are passed over, since
their outcomes are in the log already. Of a span are read: its times, these attributes, `http.response.status_code` or
`error.type`, `gen_ai.response.time_to_first_chunk` and the counts of tokens; messages, if there are any, are not.

What it does not handle: a span says of a refusal less than its body did, so a 429 is taken for saturation of an engine
and for the quota of a provider. Metrics (`gen_ai.client.operation.duration`) are sums over time, of which no single
request can be told. docs/decisions/0005.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from evenload.api.errors import ApiError
from evenload.api.keys import Refused
from evenload.collector.reports import Reported, ReportedFirstToken, ReportedOutcome
from evenload.schemas.telemetry import COUNT_MAX, MILLISECONDS_MAX, OutcomeKind
from evenload.settings import InstanceSettings

TYPES = {"application/x-protobuf": "protobuf", "application/json": "json"}
OPERATIONS = frozenset({"chat", "text_completion", "generate_content", "embeddings"})
_PORTS = {"http": 80, "https": 443}
# Words in the names of exceptions, in this order.
_WORDS: tuple[tuple[str, OutcomeKind], ...] = (
    ("timeout", "timeout"),
    ("deadline", "timeout"),
    ("cancel", "client_gone"),
    ("connect", "connect_error"),
    ("ratelimit", "saturated"),
    ("internalserver", "http_error"),
)


class Spans(NamedTuple):
    """What a request had in it.

    Attributes:
        events: of the spans that count.
        spans: how many of them there were.
        unplaced: GenAI spans whose instance is not known here.
        reason: of the first of these.
    """

    events: list[Reported]
    spans: int
    unplaced: int
    reason: str


class Places:
    """Which instance is at an address."""

    def __init__(self, instances: Iterable[InstanceSettings]) -> None:
        self._providers = set()
        self._ids = set()
        self._at: dict[tuple[str, int], str | None] = {}
        for instance in instances:
            url = urlsplit(instance.url)
            at = (url.hostname or "", url.port or _PORTS[url.scheme])
            # Two of one address (accounts of a provider, for instance) cannot be told apart by it.
            self._at[at] = None if at in self._at else instance.id
            self._ids.add(instance.id)
            if instance.kind == "none":
                self._providers.add(instance.id)

    def find(self, attributes: Mapping[str, Any]) -> str | None:
        """Return the id of the instance that a span is about; None if that cannot be told."""
        named = attributes.get("evenload.instance")
        if named is not None:
            return named if named in self._ids else None
        host, port = str(attributes.get("server.address", "")).strip("[]").lower(), attributes.get("server.port")
        ports = [port] if isinstance(port, int) else _PORTS.values()
        found = {self._at[host, one] for one in ports if (host, one) in self._at}
        return found.pop() if len(found) == 1 else None

    def is_provider(self, instance: str) -> bool:
        """Tell whether an instance is a provider: its refusals concern a quota."""
        return instance in self._providers


def read_request(body: bytes, content_type: str) -> tuple[Any, str]:
    """Read a body; returns the request and the kind in which the answer goes back.

    Raises:
        Refused: 400 or 415.
    """
    name = content_type.partition(";")[0].strip().lower()
    kind = TYPES.get(name)
    if kind is None:
        message = f"Content-Type must be {' or '.join(TYPES)}."
        raise Refused(ApiError(status=415, code="unsupported_media_type", message=message))
    request = ExportTraceServiceRequest()
    try:
        if kind == "json":
            if not body.lstrip().startswith(b"{"):
                raise ParseError("no object")  # the library takes [] and "" for an empty message
            Parse(body, request, ignore_unknown_fields=True, max_recursion_depth=32)
        else:
            request.ParseFromString(body)
    except (DecodeError, ParseError, UnicodeDecodeError, ValueError, RecursionError):
        message = f"The body is no ExportTraceServiceRequest in {name}."
        raise Refused(ApiError(status=400, code="undecodable", message=message)) from None
    return request, kind


def answer(kind: str, spans: Spans) -> tuple[str, bytes]:
    """Return type and body of the answer to a request of that kind."""
    response = ExportTraceServiceResponse()
    if spans.unplaced:
        response.partial_success.rejected_spans = spans.unplaced
        response.partial_success.error_message = spans.reason
    if kind == "json":
        return "application/json", MessageToJson(response, indent=None).encode()
    return "application/x-protobuf", response.SerializeToString()


def events_of(request: Any, places: Places, now_ns: int) -> Spans:
    """Find what a request says about our instances.

    Args:
        request: From `read_request`.
        places: Of the instances.
        now_ns: The host's clock; senders' clocks must agree with it, or what they say is taken for old.
    """
    events: list[Reported] = []
    spans = unplaced = 0
    reason = ""
    for span, attributes in _genai(request):
        instance = places.find(attributes)
        if instance is None:
            unplaced += 1
            at = f"{attributes.get('server.address', '')}:{attributes.get('server.port', '')}"
            reason = reason or f"no single instance is at {at[:200]} (server.address, server.port)"
            continue
        spans += 1
        events += _told(span, attributes, instance, places.is_provider(instance), now_ns)
    return Spans(events, spans, unplaced, reason)


def _genai(request: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                if span.kind != Span.SPAN_KIND_CLIENT:
                    continue
                attributes = {item.key: _value(item.value) for item in span.attributes}
                own = "evenload.request.id" in attributes
                if attributes.get("gen_ai.operation.name") in OPERATIONS and not own:
                    yield span, attributes


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind in ("string_value", "int_value", "double_value", "bool_value") else None


def _told(span: Any, attributes: Mapping[str, Any], instance: str, provider: bool, now_ns: int) -> Iterator[Reported]:
    ago_ms = _milliseconds((now_ns - span.end_time_unix_nano) / 1e6)
    duration_ms = _milliseconds((span.end_time_unix_nano - span.start_time_unix_nano) / 1e6)
    prompt, output = _count(attributes, "gen_ai.usage.input_tokens"), _count(attributes, "gen_ai.usage.output_tokens")
    first_s = attributes.get("gen_ai.response.time_to_first_chunk")
    known = isinstance(first_s, int | float) and math.isfinite(first_s)
    ttft_ms = _milliseconds(float(first_s) * 1000) if first_s is not None and known else None
    if ttft_ms is not None:
        waited_ms = max(0.0, duration_ms - ttft_ms)
        since_ms = _milliseconds(ago_ms + waited_ms)
        yield ReportedFirstToken(instance=instance, ago_ms=since_ms, ttft_ms=ttft_ms, prompt_tokens=prompt)
    kind, status, cause = outcome(span.status.code == Status.STATUS_CODE_ERROR, attributes, provider)
    yield ReportedOutcome(
        instance=instance,
        ago_ms=ago_ms,
        kind=kind,
        status=status,
        cause=cause,
        ttft_ms=ttft_ms,
        duration_ms=duration_ms,
        prompt_tokens=prompt,
        output_tokens=output,
    )


def outcome(failed: bool, attributes: Mapping[str, Any], provider: bool) -> tuple[OutcomeKind, int, str]:
    """Say how an attempt ended: kind, HTTP status and cause.

    An exception of which nothing says that the instance made it blames nobody.
    """
    error = str(attributes.get("error.type") or "")
    status = attributes.get("http.response.status_code")
    if not isinstance(status, int):
        status = int(error) if error.isascii() and error.isdecimal() and len(error) == 3 else 0
    status = status if 0 <= status <= 999 else 0
    if not failed and not error and status < 400:
        return "ok", status, ""
    cause = f"otel_{status}" if status else "otel_error"
    busy: OutcomeKind = "quota" if provider else "saturated"
    if status in (429, 503):
        return busy, status, cause
    if status in (408, 504):
        return "timeout", status, cause
    if status >= 400:
        return ("http_error" if status >= 500 else "rejected"), status, cause
    plain = error.lower().replace("_", "")
    kind: OutcomeKind = next((kind for word, kind in _WORDS if word in plain), "rejected")
    return (busy if kind == "saturated" else kind), status, cause


def _milliseconds(value: float) -> float:
    return min(max(0.0, value), MILLISECONDS_MAX)


def _count(attributes: Mapping[str, Any], name: str) -> int:
    value = attributes.get(name, 0)
    return min(max(0, value), COUNT_MAX) if isinstance(value, int) else 0
