"""The model's name in a request: found, and replaced byte for byte; everything else of the body stays as it came.

Pure. Only keys of the outermost object count, so a message, a tool or metadata that has a `model` is not touched. A key
that stands twice is replaced twice: which one counts is the reader's choice, and nobody shall get another model by it.

The name is looked for token by token, which ends at once where it stands in front, as it mostly does. A body in which
it would take too long is put together again from its members, with the white space between them lost.
"""

import re

import msgspec

TOKENS_MAX = 20_000  # some 10 ms of the event loop

_MARK = re.compile(rb'["{}\[\]]')
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_COLON = re.compile(rb"\s*:\s*")
_QUOTE, _BACKSLASH = b'"'[0], b"\\"[0]
_OPEN, _KEY = b"{[", b'"model"'
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
    depth = position = 0
    expected = -1  # where the value begins whose key has been read
    for _ in range(TOKENS_MAX):
        mark = _MARK.search(body, position)
        assert mark is not None, "the body has been read as JSON"
        start, position = mark.start(), mark.end()
        first = body[start]
        if first == _QUOTE:
            position = _string_end(body, start)
            if start == expected:
                spans.append((start, position))
                if not _stands_again(body, position):
                    return spans
            elif depth == 1 and _is_model(body[start:position]):
                colon = _COLON.match(body, position)
                expected = -1 if colon is None else colon.end()
        elif first in _OPEN:
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return spans
    return None


def _string_end(body: bytes, start: int) -> int:
    """Return the end of the string that begins at `start`; one with a backslash before a quote needs a close look."""
    quote = body.index(b'"', start + 1)
    if body[quote - 1] != _BACKSLASH:
        return quote + 1
    found = _STRING.match(body, start)
    assert found is not None, "the body has been read as JSON"
    return found.end()


def _stands_again(body: bytes, position: int) -> bool:
    if body.find(_KEY, position) < 0 and body.find(b"\\u00", position) < 0:
        return False
    return _AGAIN.search(body, position) is not None


def _is_model(text: bytes) -> bool:
    if text == _KEY:
        return True
    return b"\\" in text and len(text) <= 2 + 6 * 5 and msgspec.json.decode(text, type=str) == "model"
