"""Small blocking HTTP requests for readiness, checks and operators; never on the request path."""

import http.client
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

BODY_BYTES_MAX = 8 * 1024 * 1024


def get(
    url: str, *, timeout_s: float, headers: Mapping[str, str] | None = None, ca_file: Path | None = None
) -> tuple[int, bytes]:
    """Fetch a URL; arguments, result and errors as of `request`."""
    return request("GET", url, timeout_s=timeout_s, headers=headers, ca_file=ca_file)


def request(
    method: str,
    url: str,
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    ca_file: Path | None = None,
    body: bytes | None = None,
) -> tuple[int, bytes]:
    """Make a request, without proxies and redirects.

    Args:
        method: GET, POST ...
        url: http or https; https is verified.
        timeout_s: to connect, and between bytes.
        headers: to be sent.
        ca_file: authorities to trust instead of the system's.
        body: to be sent, if any.

    Returns:
        Status and body; the body is cut at 8 MiB.

    Raises:
        OSError: It did not answer in time, or not in HTTP.
    """
    parts = urlsplit(url)
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=ca_file)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.netloc, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(method, target, body, dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.read(BODY_BYTES_MAX)
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer: {type(error).__name__} {error}") from error
    finally:
        connection.close()


def answers(url: str, *, timeout_s: float = 2.0) -> bool:
    """Tell whether a GET is answered with a 2xx."""
    try:
        return 200 <= get(url, timeout_s=timeout_s)[0] < 300
    except OSError:
        return False
