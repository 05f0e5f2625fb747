"""What is looked at of an error's body, in all the forms that engines and providers give it. Pure."""

from typing import Any

import msgspec

MESSAGE_CHARS_MAX = 2048


class Fields(msgspec.Struct, frozen=True):
    """The parts by which an error is judged.

    Attributes:
        words: type and code, lower case, without `_`, `-`, `.` and spaces.
        message: how it begins, lower case.
        code: numeric code, None without one.
        type: short, as the upstream names it.
    """

    words: str
    message: str
    code: int | None
    type: str


def fields_of(body: bytes) -> Fields:
    """Return what an error's body, or its beginning, says."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return fields_of_object({"message": body[:MESSAGE_CHARS_MAX].decode("utf-8", "replace")})
    if not isinstance(decoded, dict):
        return fields_of_object({"message": decoded})
    error = decoded.get("error")
    if isinstance(error, dict):
        return fields_of_object(error)
    if isinstance(error, str):
        return fields_of_object({"message": error, "type": decoded.get("error_type")})
    return fields_of_object(tencents(decoded.get("Response")) or decoded)


def tencents(response: Any) -> dict[str, Any] | None:
    """Return the error in the member `Response` of Tencent Cloud's answers, whatever their status; None without one."""
    error = response.get("Error") if isinstance(response, dict) else None
    return {"code": error.get("Code"), "message": error.get("Message")} if isinstance(error, dict) else None


def fields_of_object(error: dict[str, Any]) -> Fields:
    """Return what an error that is an object says."""
    kind = error.get("type") or error.get("__type") or error.get("status") or ""
    code = error.get("code")
    message = error.get("message") or error.get("detail") or error.get("Message") or ""
    if not isinstance(message, str):
        message = ""
    return Fields(
        words=words_of(f"{kind} {code}"),
        message=message[:MESSAGE_CHARS_MAX].lower().lstrip(),
        code=_whole(code),
        type=short_name(kind),
    )


def words_of(text: str) -> str:
    """Return a type or code as words are compared."""
    return "".join(c for c in text[:256].lower() if c not in "_-. ")


def _whole(code: Any) -> int | None:
    if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) <= 6:
        return int(code)
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def short_name(value: Any) -> str:
    """Return a type or code as a short plain word, so that no text of a user can hide in it."""
    text = value if isinstance(value, str) else ""
    return "".join(c for c in text if c.isascii() and (c.isalnum() or c in "_-. "))[:40]


def has_any(text: str, needles: tuple[str, ...]) -> bool:
    """Tell whether one of the needles is in a text."""
    return any(needle in text for needle in needles)
