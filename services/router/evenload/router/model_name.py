"""The model's name in answers: as the client wrote it, where the pool is configured so.

Pure; bytes are rewritten as they pass, in JSON and in every server-sent event alike, wherever they are split. A key
`"model"` with its quotes unescaped cannot occur inside a JSON string, so text that speaks of models is not touched.
"""

import re

import msgspec

HELD_BYTES_MAX = 1024  # a name that is longer, with its key, is passed as it is

_PAIR = re.compile(rb'"model"\s*:\s*"(?:[^"\\]|\\.)*"', re.DOTALL)
_BEGUN = re.compile(rb'"(?:m|mo|mod|mode|model|model"\s*|model"\s*:\s*|model"\s*:\s*"(?:[^"\\]|\\.)*\\?)?\Z', re.DOTALL)


class ModelName:
    """Rewrites one answer.

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
