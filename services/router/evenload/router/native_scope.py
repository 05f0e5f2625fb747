"""What a connection says of a request, as ASGI's scope, and of its peer."""

import asyncio
import contextlib
import fcntl
import sys
import termios
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


def unsent_bytes(transport: asyncio.WriteTransport) -> int:
    """Return how many bytes wait to be read by the peer's system: in the transport, and where it tells, in ours."""
    waiting: int = transport.get_write_buffer_size()
    own = transport.get_extra_info("socket")
    # A large buffer of the kernel lets nothing more in before a third of it is free: by itself it would look stuck.
    with contextlib.suppress(OSError, AttributeError):
        queued = bytearray(4)
        fcntl.ioctl(own.fileno(), termios.TIOCOUTQ, queued)
        waiting += int.from_bytes(queued, sys.byteorder)
    return waiting


def address_of(value: Any) -> tuple[str, int] | None:
    """Return host and port of a socket's name; None for one that has none."""
    return (str(value[0]), int(value[1])) if isinstance(value, tuple) else None
