"""Streams that are passed through: speech, transcriptions, images. Pure.

OpenAI's have named events (`transcript.text.delta`, `speech.audio.done`, `image_generation.completed`), engines also
send chunks as for chat; both are understood.
"""

from typing import Any

import msgspec

from .sse import count_of, names_in
from .sse_chat import ChatObserver

_ENDS = (".done", ".completed")
_LONG_ENDS = tuple(end.encode() for end in _ENDS)


class _Event(msgspec.Struct, gc=False):
    type: Any = None
    usage: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class MediaObserver(ChatObserver):
    """Watches one stream of named events or of chunks."""

    __slots__ = ("_overs",)

    def __init__(self, choices: int = 1) -> None:
        super().__init__(choices)
        self._overs = 0

    @property
    def finished(self) -> bool:
        """Whether a last event has come, or every choice has had its finish reason."""
        return self._overs > 0 or super().finished

    def _payload(self, payload: bytes, *, is_error: bool = False) -> None:
        super()._payload(payload, is_error=is_error)
        if self.error is not None:
            return
        try:
            event = _decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return  # counted already
        if not isinstance(event.type, str):
            return
        if event.type.endswith(_ENDS):
            self._note_over()
            if isinstance(event.usage, dict):
                self.prompt_tokens = count_of(event.usage.get("input_tokens"), self.prompt_tokens)
                self.completion_tokens = count_of(event.usage.get("output_tokens"), self.completion_tokens)
        self._content()

    def _passed_oversized(self, ends: bytes) -> None:
        super()._passed_oversized(ends)
        if any(name.endswith(_LONG_ENDS) for name in names_in(ends)):
            self._note_over()  # pictures are long

    def _note_over(self) -> None:
        self._overs += 1
        self.done = self.done or self._overs >= self._choices
