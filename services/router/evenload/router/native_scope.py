"""What a request is, as ASGI says it: the scope, from a parsed head. Pure."""

from typing import Any
from urllib.parse import unquote

import httptools

Headers = list[tuple[bytes, bytes]]

_ASGI = {"version": "3.0", "spec_version": "2.3"}


def scope_of(method: str, target: bytes, version: str, headers: Headers) -> dict[str, Any]:
    """Return the scope without what belongs to the connection: server, client, scheme and state.

    Args:
        method: as it came.
        target: of the request line; its path and query, or a whole URL, or `*`.
        version: of HTTP, such as 1.1.
        headers: with lower-case names.

    Raises:
        httptools.HttpParserInvalidURLError: the target is none of these.
    """
    if target[:1] == b"/":
        raw_path, _, query = target.partition(b"?")
    else:
        parsed = httptools.parse_url(target)
        raw_path, query = parsed.path or b"/", parsed.query or b""
    path = raw_path.decode("latin-1")
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": version,
        "root_path": "",
        "method": method,
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
        "headers": headers,
        "extensions": {},
    }


def address_of(value: Any) -> tuple[str, int] | None:
    """Return host and port of a socket's name; None for one that has none."""
    return (str(value[0]), int(value[1])) if isinstance(value, tuple) else None
