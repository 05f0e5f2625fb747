"""Which headers pass the router, both ways. Pure; names are lower case, as ASGI and `Response` give them.

Allow-lists: a header that nobody thought of stays out. Hop-by-hop headers are on neither list, and one that
`Connection` names is dropped although it is. The client's credential is for the router; it never goes upstream.
"""

from collections.abc import Iterable, Mapping

Headers = list[tuple[bytes, bytes]]

REQUEST_ALLOWED = frozenset(
    {b"accept", b"accept-language", b"baggage", b"content-type", b"traceparent", b"tracestate", b"user-agent"}
)
RESPONSE_ALLOWED = frozenset(
    {
        b"cache-control",
        b"content-encoding",
        b"content-language",
        b"content-length",
        b"content-type",
        b"retry-after",
        b"retry-after-ms",
        b"vary",
        b"x-should-retry",  # OpenAI's clients obey it
    }
)
REQUEST_ID_BYTES_MAX = 128
_NONE: frozenset[bytes] = frozenset()


def request_headers(headers: Iterable[tuple[bytes, bytes]], request_id: bytes) -> Headers:
    """Return what goes upstream of a client's headers, with the request id.

    Compression is declined: a compressed stream could not be observed.
    """
    headers = list(headers)
    named = _named_by_connection(headers)
    kept = [
        (name, value)
        for name, value in headers
        if (name in REQUEST_ALLOWED or name.startswith((b"openai-", b"anthropic-"))) and name not in named
    ]
    kept.append((b"accept-encoding", b"identity"))
    kept.append((b"x-request-id", request_id))
    return kept


def response_headers(headers: Iterable[tuple[bytes, bytes]], *, with_length: bool = True) -> Headers:
    """Return what goes to the client of an upstream's headers.

    Args:
        headers: of the response.
        with_length: keep content-length; without it the body may be ended early or added to.
    """
    headers = list(headers)
    named = _named_by_connection(headers)
    return [
        (name, value)
        for name, value in headers
        if (name in RESPONSE_ALLOWED or name.startswith((b"openai-", b"x-ratelimit-", b"anthropic-ratelimit-")))
        and name not in named
        and (with_length or name != b"content-length")
    ]


def request_id_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the client's request id if it is a plain one of sane length."""
    value = headers.get(b"x-request-id")
    if value is None or not 0 < len(value) <= REQUEST_ID_BYTES_MAX:
        return None
    return value if all(0x21 <= byte <= 0x7E for byte in value) else None


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    values = [value for name, value in headers if name == b"connection"]
    return frozenset(token.strip().lower() for value in values for token in value.split(b",")) if values else _NONE
