"""Short fields of a multipart form, read in place: the file beside them may have megabytes and is not copied. Pure."""

from collections.abc import Iterable
from email.message import Message
from email.parser import BytesHeaderParser

PARTS_MAX = 64
HEAD_BYTES_MAX = 8192  # of one part
VALUE_BYTES_MAX = 1024


class FormError(ValueError):
    """The body is no multipart form; the text says why, without anything of the body."""


def form_fields(content_type: bytes, body: bytes, names: Iterable[str]) -> dict[str, str]:
    """Return the fields of `names` that the form has; of those that stand twice the last.

    Args:
        content_type: of the request, with the boundary.
        body: the whole form.
        names: fields to look for; their values are at most `VALUE_BYTES_MAX` long.

    Raises:
        FormError: it is not a form, or one of these fields is too long or not UTF-8.
    """
    spans = field_spans(content_type, body, names)
    return {name: _value(name, body[start:end]) for name, (start, end) in spans}


def field_spans(content_type: bytes, body: bytes, names: Iterable[str]) -> list[tuple[str, tuple[int, int]]]:
    """Return names and where the values begin and end, in the form's order.

    Raises:
        FormError: it is not a form, or one of these fields is too long.
    """
    wanted = frozenset(names)
    delimiter = b"\r\n--" + _boundary(content_type)
    found: list[tuple[str, tuple[int, int]]] = []
    first = body.find(delimiter[2:])  # it may stand without a line end before it
    if first < 0 or (first > 0 and body[first - 2 : first] != b"\r\n"):
        raise FormError("no boundary is in it")
    at = first + len(delimiter) - 2
    for _ in range(PARTS_MAX):
        if body.startswith(b"--", at):
            return found
        head_end = body.find(b"\r\n\r\n", at, at + HEAD_BYTES_MAX)
        if head_end < 0:
            raise FormError("a part has no end of its head")
        end = body.find(delimiter, head_end + 2)
        if end < 0:
            raise FormError("the last boundary is missing")
        name = _name(body[at : head_end + 4])
        if name in wanted:
            if end - head_end - 4 > VALUE_BYTES_MAX:
                raise FormError(f"the field `{name}` is over {VALUE_BYTES_MAX} bytes")
            found.append((name, (head_end + 4, max(end, head_end + 4))))
        at = end + len(delimiter)
    raise FormError(f"it has more than {PARTS_MAX} parts")


def _boundary(content_type: bytes) -> bytes:
    message = Message()
    message["content-type"] = content_type.decode("latin-1")
    boundary = message.get_boundary()
    if message.get_content_type() != "multipart/form-data" or not boundary:
        raise FormError("its content type is not multipart/form-data with a boundary")
    return boundary.encode("latin-1")


def _name(head: bytes) -> str:
    value = BytesHeaderParser().parsebytes(head.lstrip(b" \t\r\n")).get_param("name", header="content-disposition")
    return value if isinstance(value, str) else ""


def _value(name: str, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise FormError(f"the field `{name}` is not UTF-8") from None
