"""Errors that Evenload itself gives to clients: the API's form, a stable code, the request id, and what to do."""

from typing import Any, Literal

import msgspec

Headers = list[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode

INVALID_REQUEST = "invalid_request_error"
API_ERROR = "api_error"

Form = Literal["openai", "anthropic"]
# Anthropic's types by status; other 4xx are the request's fault, other 5xx the service's.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


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

    def body(self, request_id: bytes, form: Form = "openai") -> bytes:
        """Return the JSON body."""
        return _encode(self.content(request_id, form))

    def content(self, request_id: bytes, form: Form = "openai") -> dict[str, Any]:
        """Return the body's members; Anthropic's form has `code` and `param` too, which its clients let pass."""
        default = INVALID_REQUEST if self.status < 500 and self.status != 429 else API_ERROR
        error_type = _ANTHROPIC_TYPES.get(self.status, default) if form == "anthropic" else default
        error = {"message": self.message, "type": error_type, "param": self.param, "code": self.code}
        content = {"error": error, "request_id": request_id.decode("ascii")}
        return {"type": "error", **content} if form == "anthropic" else content

    def headers(self, body: bytes) -> Headers:
        """Return the headers that go with it."""
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return headers
