"""Errors that Evenload itself gives to clients, in the form of OpenAI's API."""

import msgspec

from .headers import Headers

_encode = msgspec.json.Encoder().encode

INVALID_REQUEST = "invalid_request_error"
API_ERROR = "api_error"


def error_body(message: str, *, error_type: str, code: str, param: str | None = None) -> bytes:
    """Return the JSON body of an error."""
    return _encode({"error": {"message": message, "type": error_type, "param": param, "code": code}})


def error_event(message: str, *, code: str) -> bytes:
    """Return the server-sent event that ends a stream which cannot go on."""
    return b"data: " + error_body(message, error_type=API_ERROR, code=code) + b"\n\n"


def error_headers(body: bytes, retry_after_s: int | None = None) -> Headers:
    """Return the headers of an error response."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % retry_after_s))
    return headers
