"""Which headers pass the router, both ways. Pure; names are lower case, as ASGI and `Response` give them.

Allow-lists: a header that nobody thought of stays out. Hop-by-hop headers are on neither list, and one that
`Connection` names is dropped although it is.

The client's credential is for the router; it never goes upstream, nor does whatever else says on whose account a
request is. What an upstream says of the router's account (organization, project, what is left of its rates) or of its
own name of a model never comes down.
"""

from collections.abc import Iterable, Mapping

Headers = list[tuple[bytes, bytes]]

REQUEST_ALLOWED = frozenset(
    {
        b"accept",
        b"accept-language",
        b"anthropic-beta",
        b"anthropic-version",
        b"baggage",
        b"content-type",
        b"openai-beta",
        b"traceparent",
        b"tracestate",
        b"user-agent",
    }
)
RESPONSE_ALLOWED = frozenset(
    {
        b"cache-control",
        b"content-encoding",
        b"content-language",
        b"content-length",
        b"content-type",
        b"openai-processing-ms",
        b"openai-version",
        b"retry-after",
        b"retry-after-ms",
        b"vary",
        b"x-should-retry",  # OpenAI's clients obey it
    }
)
REQUEST_ID_BYTES_MAX = 128


def request_headers(headers: Iterable[tuple[bytes, bytes]], request_id: bytes) -> Headers:
    """Return what goes upstream of a client's headers, with the request id.

    Compression is declined: a compressed stream could not be observed.
    """
    kept = _kept(headers, REQUEST_ALLOWED)
    kept.append((b"accept-encoding", b"identity"))
    kept.append((b"x-request-id", request_id))
    return kept


def response_headers(headers: Iterable[tuple[bytes, bytes]], *, with_length: bool = True) -> Headers:
    """Return what goes to the client of an upstream's headers.

    Args:
        headers: of the response.
        with_length: keep content-length; without it the body may be ended early or added to.
    """
    kept = _kept(headers, RESPONSE_ALLOWED)
    return kept if with_length else [header for header in kept if header[0] != b"content-length"]


def request_id_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the client's request id if it is a plain one of sane length."""
    value = headers.get(b"x-request-id", b"").strip(b" \t")
    if not 0 < len(value) <= REQUEST_ID_BYTES_MAX:
        return None
    return value if all(0x21 <= byte <= 0x7E for byte in value) else None


def content_type_of(headers: Headers) -> bytes:
    """Return the first content type, empty if there is none."""
    return next((value for name, value in headers if name == b"content-type"), b"")


def _kept(headers: Iterable[tuple[bytes, bytes]], allowed: frozenset[bytes]) -> Headers:
    kept: Headers = []
    named: set[bytes] = set()
    for header in headers:
        if header[0] in allowed:
            kept.append(header)
        elif header[0] == b"connection":
            named.update(token.strip().lower() for token in header[1].split(b","))
    return [header for header in kept if header[0] not in named] if named else kept
