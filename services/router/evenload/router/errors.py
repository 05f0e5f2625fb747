"""Errors that Evenload itself gives to clients: OpenAI's form, a stable code, the request id, and what to do."""

import msgspec

from .headers import Headers

_encode = msgspec.json.Encoder().encode

INVALID_REQUEST = "invalid_request_error"
API_ERROR = "api_error"


class ApiError(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of Evenload's own.

    Attributes:
        status: HTTP status.
        code: stable; what programs look at.
        message: for people: what is wrong, and what to do.
        param: the field of the request that is wrong.
        retry_after_s: whole seconds after which to come back.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None

    def body(self, request_id: bytes) -> bytes:
        """Return the JSON body."""
        error_type = INVALID_REQUEST if self.status < 500 and self.status != 429 else API_ERROR
        error = {"message": self.message, "type": error_type, "param": self.param, "code": self.code}
        return _encode({"error": error, "request_id": request_id.decode("ascii")})

    def headers(self, body: bytes) -> Headers:
        """Return the headers that go with it."""
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return headers


def error_event(message: str, *, code: str, request_id: bytes) -> bytes:
    """Return the server-sent event that ends a stream which cannot go on."""
    return b"data: " + ApiError(status=502, code=code, message=message).body(request_id) + b"\n\n"
