"""The model's name in a request: found, and replaced byte for byte; everything else of the body stays as it came.

Pure. Only keys of the outermost object count, so a message, a tool or metadata that has a `model` is not touched. A key
that stands twice is replaced twice: which one counts is the reader's choice, and nobody shall get another model by it.

The name is looked for token by token, which ends at once where it stands in front, as it mostly does. A body in which
it would take too long is put together again from its members, with the white space between them lost.
"""

import re
from itertools import islice

import msgspec

TOKENS_MAX = 20_000  # some 10 ms of the event loop

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_COLON = re.compile(rb"\s*:\s*")
_OPEN, _CLOSE, _KEY = b"{[", b"}]", b'"model"'
# Further down it may stand again, plainly or with escapes.
_AGAIN = re.compile(rb'"(?:[model]|\\u00[0-9a-fA-F]{2}){5}"\s*:')

Spans = list[tuple[int, int]]


class Found(msgspec.Struct, frozen=True):
    """The model's name, and where the strings with it begin and end; `spans` is None where that took too long."""

    name: str
    spans: Spans | None


class _Model(msgspec.Struct):
    model: str


_decode_model = msgspec.json.Decoder(_Model).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def find_model(body: bytes) -> Found:
    """Return the name of the model that a body asks for.

    Raises:
        msgspec.MsgspecError: the body is not a JSON object with a `model` that is a string.
    """
    return Found(_decode_model(body).model, _spans(body))


def replaced(body: bytes, found: Found, name: bytes) -> bytes:
    """Return the body with `name`, a JSON string in its quotes, in place of the model's name."""
    if found.spans is None:
        return msgspec.json.encode(_decode_members(body) | {"model": msgspec.Raw(name)})
    parts: list[bytes] = []
    last = 0
    for start, end in found.spans:
        parts += (body[last:start], name)
        last = end
    return b"".join([*parts, body[last:]])


def _spans(body: bytes) -> Spans | None:
    spans: Spans = []
    depth = 0
    expected = -1  # where the value begins whose key has been read
    for token in islice(_TOKEN.finditer(body), TOKENS_MAX):
        start, end = token.span()
        first = body[start]
        if first in _OPEN:
            depth += 1
        elif first in _CLOSE:
            depth -= 1
            if depth == 0:
                return spans
        elif start == expected:
            spans.append((start, end))
            if _AGAIN.search(body, end) is None:
                return spans
        elif depth == 1 and _is_model(body[start:end]):
            colon = _COLON.match(body, end)
            expected = -1 if colon is None else colon.end()
    return None


def _is_model(text: bytes) -> bool:
    if text == _KEY:
        return True
    return b"\\" in text and len(text) <= 2 + 6 * 5 and msgspec.json.decode(text, type=str) == "model"
