"""The model's name in answers: as the client wrote it, where the pool is configured so.

Pure; in JSON and in every server-sent event alike, wherever they are split. A key `"model"` with its quotes unescaped
cannot occur inside a JSON string, so text that speaks of models is not touched.
"""

import re
from typing import Protocol

import msgspec

HELD_BYTES_MAX = 1024  # a name that is longer, with its key, is passed as it is

_PAIR = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"', re.DOTALL)
_BEGUN = re.compile(rb'"(?:m|mo|mod|mode|model|model"\s*|model"\s*:\s*|model"\s*:\s*"(?:[^"\\]|\\.)*\\?)?\Z', re.DOTALL)

WAITING_BYTES_MAX = 8 * 1024 * 1024
_BLANK = re.compile(rb"\n\n|\r\n\r\n|\r\r")
_JSON = re.compile(rb"(?:\A|(?:\A|[\r\n])data:)[ \t\r\n]*(\{)")
_HOLDERS = ("message", "response")
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class NameRewriter(Protocol):
    """Rewrites one answer as it passes."""

    def __init__(self, name: str) -> None:
        """Take what the client asked for."""

    def feed(self, data: bytes) -> bytes:
        """Return what can be passed on."""

    def close(self) -> bytes:
        """Return what still waits."""


class ModelName:
    """Rewrites every pair where it stands; bytes pass as they come.

    Args:
        name: what the client asked for.
    """

    __slots__ = ("_held", "_pair")

    def __init__(self, name: str) -> None:
        self._pair = b'"model":' + msgspec.json.encode(name)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what can be passed on; the beginning of a pair at the end waits for the rest of it."""
        data = _PAIR.sub(lambda _: self._pair, self._held + data)
        begun = _BEGUN.search(data, max(0, len(data) - HELD_BYTES_MAX))
        if begun is None:
            self._held = b""
            return data
        self._held = data[begun.start() :]
        return data[: begun.start()]

    def close(self) -> bytes:
        """Return what still waits."""
        held, self._held = self._held, b""
        return held


class OuterModelName:
    """The same for APIs whose answers hold foreign JSON: a tool's arguments may have a `model` of their own.

    Rewrites the outermost `model`, and that of `message` and `response`, as events have it. Frames and bodies wait
    until they are whole; one over `WAITING_BYTES_MAX` is passed as it is.

    Args:
        name: what the client asked for.
    """

    __slots__ = ("_name", "_passing", "_waiting")

    def __init__(self, name: str) -> None:
        self._name = msgspec.Raw(msgspec.json.encode(name))
        self._waiting = bytearray()
        self._passing = False

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

    def _frame(self, frame: bytes) -> bytes:
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
