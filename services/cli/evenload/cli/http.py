"""A small blocking HTTP GET for readiness and checks; never on the request path."""

import http.client
from urllib.parse import urlsplit

BODY_BYTES_MAX = 8 * 1024 * 1024


def get(url: str, *, timeout_s: float, bearer: str | None = None) -> tuple[int, bytes]:
    """Fetch a URL, without proxies and redirects.

    Returns:
        Status and body; the body is cut at 8 MiB.

    Raises:
        OSError: It did not answer in time, or not in HTTP.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=timeout_s)
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    try:
        connection.request("GET", parts.path or "/", headers=headers)
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
