"""What is looked at of a request: a few fields of its JSON, or of its form. Pure.

A request that cannot be served for what stands there is `Unservable`, before an instance is chosen.
"""

import msgspec

from evenload.api.errors import ApiError

from .beginnings import Prompt
from .endpoints import Endpoint
from .form_fields import FormError, form_fields
from .headers import Headers, content_type_of

_NOT_IN_BACKGROUND = (b"", b"false", b"null")


class Unservable(Exception):
    """The request is refused before an instance is chosen."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(code)
        self.error = ApiError(status=status, code=code, message=message, param=param)


class Head(Prompt, gc=False):
    """The fields."""

    model: str
    stream: bool | None = None
    max_tokens: int | float | None = None
    max_completion_tokens: int | float | None = None
    max_output_tokens: int | float | None = None
    background: msgspec.Raw = msgspec.Raw()  # images have a field of that name and another type
    n: int | float | None = None


_decode_head = msgspec.json.Decoder(Head).decode


def read(endpoint: Endpoint, sent: Headers, body: bytes) -> Head:
    """Return what a body says.

    Args:
        endpoint: decides whether it is a form.
        sent: headers that go upstream.
        body: whole.

    Raises:
        Unservable: it cannot be read, or asks for what is not served.
    """
    head = _read_form(sent, body) if endpoint.multipart else _read_head(body)
    if endpoint.stored and bytes(head.background) not in _NOT_IN_BACKGROUND:
        raise _not_in_background()
    return head


def _read_head(body: bytes) -> Head:
    try:
        return _decode_head(body)
    except msgspec.ValidationError as error:
        # msgspec's texts name a field and types, never a value.
        raise Unservable(400, "invalid_value", f"The request is not valid: {error}.", _field_of(error)) from None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise not_json() from None


def not_json() -> Unservable:
    """Return what is told of a body that cannot be read."""
    return Unservable(400, "invalid_json", "The body is not valid JSON; send one JSON object in UTF-8.")


def _read_form(sent: Headers, body: bytes) -> Head:
    """Read a form by the headers that go upstream: who reads it there shall find what is found here."""
    try:
        fields = form_fields(content_type_of(sent), body, ("model", "stream"))
    except FormError as error:
        raise Unservable(400, "invalid_form", f"The body is not a valid form: {error}.") from None
    if "model" not in fields:
        raise Unservable(400, "invalid_value", "The form has no field `model`; add one.", "model")
    return Head(fields["model"], fields.get("stream", "").strip().lower() in ("true", "1"))


def _not_in_background() -> Unservable:
    message = (
        "Responses are not stored by the router, so one made in the background could not be fetched. "
        "Leave `background` out, and stream the answer if it is long."
    )
    return Unservable(400, "unsupported_value", message, "background")


def _field_of(error: msgspec.ValidationError) -> str | None:
    text = str(error)
    return next((field for field in Head.__struct_fields__ if f"`{field}`" in text or f"$.{field}`" in text), None)
