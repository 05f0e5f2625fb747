"""The model's name in answers: as the client wrote it, where the pool is configured so.

Pure; in JSON and in every server-sent event alike, wherever they are split. A key `"model"` with its quotes unescaped
cannot occur inside a JSON string, so text that speaks of models is not touched. Errors speak of models in their text:
there, and only there, the upstream's name is replaced wherever it stands as a word.
"""

import re
from typing import Protocol

import msgspec

HELD_BYTES_MAX = 1024  # a name that is longer, with its key, is passed as it is

_PAIR = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"', re.DOTALL)
_BEGUN = re.compile(
    rb'"(?:m|mo|mod|mode|model|model"\s*|model"\s*:\s*|model"\s*:\s*"(?:[^"\\]|\\.)*\\?'
    rb'|e|er|err|erro|error|error"\s*|error"\s*:\s*)?\Z',
    re.DOTALL,
)
# An error, or an event of that type; `"error": null` is none.
_ERROR = re.compile(rb'"error"\s*(?::\s*[{"]|[,}])')

ERROR_BYTES_MAX = 64 * 1024  # of an error that waits for its end
WAITING_BYTES_MAX = 8 * 1024 * 1024
_BLANK = re.compile(rb"\n\n|\r\n\r\n|\r\r")
_JSON = re.compile(rb"(?:\A|(?:\A|[\r\n])data:)[ \t\r\n]*(\{)")
_HOLDERS = ("message", "response")
_Theirs = re.Pattern[bytes] | None
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class NameRewriter(Protocol):
    """Rewrites one answer as it passes."""

    def __init__(self, name: str) -> None:
        """Take what the client asked for."""

    def theirs(self, name: str) -> None:
        """Take what the upstream calls the model."""

    def feed(self, data: bytes) -> bytes:
        """Return what can be passed on."""

    def close(self) -> bytes:
        """Return what still waits."""

    def error(self, body: bytes) -> bytes:
        """Return a body that is an error and nothing else."""


class ModelName:
    """Rewrites every pair where it stands; bytes pass as they come.

    Args:
        name: what the client asked for.
    """

    __slots__ = ("_error", "_held", "_name", "_pair", "_theirs")

    def __init__(self, name: str) -> None:
        self._name = msgspec.json.encode(name)
        self._pair = b'"model":' + self._name
        self._held = b""
        self._theirs: _Theirs = None
        self._error: bytearray | None = None  # of which not all has come

    def theirs(self, name: str) -> None:
        """Take what the upstream calls the model."""
        self._theirs = _word(name, self._name)

    def feed(self, data: bytes) -> bytes:
        """Return what can be passed on; the beginning of a pair at the end waits for the rest of it, as errors do."""
        if self._error is not None:
            return self._more_of_error(data)
        data = _PAIR.sub(lambda _: self._pair, self._held + data)
        if self._theirs is not None and (error := _ERROR.search(data)) is not None:
            self._held, self._error = b"", bytearray()
            return data[: error.start()] + self._more_of_error(data[error.start() :])
        begun = _BEGUN.search(data, max(0, len(data) - HELD_BYTES_MAX))
        if begun is None:
            self._held = b""
            return data
        self._held = data[begun.start() :]
        return data[: begun.start()]

    def close(self) -> bytes:
        """Return what still waits."""
        if self._error is not None:
            held, self._error = bytes(self._error), None
            return self.error(held)
        held, self._held = self._held, b""
        return held

    def error(self, body: bytes) -> bytes:
        """Return a body that is an error and nothing else."""
        return _renamed_in_text(_PAIR.sub(lambda _: self._pair, body), self._theirs, self._name)

    def _more_of_error(self, data: bytes) -> bytes:
        waiting = self._error
        assert waiting is not None
        scan = max(0, len(waiting) - 3)
        waiting += data
        blank = _BLANK.search(waiting, scan)
        if blank is None and len(waiting) <= ERROR_BYTES_MAX:
            return b""
        end = len(waiting) if blank is None else blank.end()
        told, rest = self.error(bytes(waiting[:end])), bytes(waiting[end:])
        self._error = None
        return told + self.feed(rest)


class OuterModelName:
    """The same for APIs whose answers hold foreign JSON: a tool's arguments may have a `model` of their own.

    Rewrites the outermost `model`, and that of `message` and `response`, as events have it. Frames and bodies wait
    until they are whole; one over `WAITING_BYTES_MAX` is passed as it is.

    Args:
        name: what the client asked for.
    """

    __slots__ = ("_name", "_passing", "_theirs", "_waiting")

    def __init__(self, name: str) -> None:
        self._name = msgspec.Raw(msgspec.json.encode(name))
        self._theirs: _Theirs = None
        self._waiting = bytearray()
        self._passing = False

    def theirs(self, name: str) -> None:
        """Take what the upstream calls the model."""
        self._theirs = _word(name, bytes(self._name))

    def feed(self, data: bytes) -> bytes:
        """Return what can be passed on."""
        if self._passing:
            return data
        waiting = self._waiting
        scan = max(0, len(waiting) - 3)
        waiting += data
        passed: list[bytes] = []
        start = 0
        for blank in _BLANK.finditer(waiting, scan):
            passed.append(self._frame(bytes(waiting[start : blank.end()])))
            start = blank.end()
        del waiting[:start]
        if len(waiting) > WAITING_BYTES_MAX:
            self._passing = True
            passed.append(bytes(waiting))
            waiting.clear()
        return b"".join(passed)

    def close(self) -> bytes:
        """Return what still waits."""
        rest = bytes(self._waiting)
        self._waiting.clear()
        return self._frame(rest)

    def error(self, body: bytes) -> bytes:
        """Return a body that is an error and nothing else."""
        return _renamed_in_text(self._with_name(body), self._theirs, bytes(self._name))

    def _frame(self, frame: bytes) -> bytes:
        return self._with_name(frame) if _ERROR.search(frame) is None else self.error(frame)

    def _with_name(self, frame: bytes) -> bytes:
        if b'"model"' not in frame:
            return frame
        start = _JSON.search(frame)
        if start is None:
            return frame
        json = frame[start.start(1) :]
        end = json[len(json.rstrip()) :]
        try:
            return frame[: start.start(1)] + self._renamed(json) + end
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return frame

    def _renamed(self, json: bytes | msgspec.Raw) -> bytes:
        members = _decode_members(json)
        for key, value in members.items():
            if key == "model" and bytes(value).startswith(b'"'):
                members[key] = self._name
            elif key in _HOLDERS and bytes(value).startswith(b"{"):
                members[key] = msgspec.Raw(self._renamed(value))
        return msgspec.json.encode(members)


def _word(theirs: str, name: bytes) -> _Theirs:
    """Return what finds the upstream's name as a word of a text, None if it is the client's, too.

    A word has no letter, digit, underscore, hyphen or slash beside it; the key of an object is none.
    """
    inside = msgspec.json.encode(theirs)[1:-1]
    if not inside or inside == name[1:-1]:
        return None
    return re.compile(rb"(?<![\w/-])" + re.escape(inside) + rb'(?![\w/-])(?!"\s*:)')


def _renamed_in_text(error: bytes, theirs: _Theirs, name: bytes) -> bytes:
    return error if theirs is None else theirs.sub(lambda _: name[1:-1], error)
