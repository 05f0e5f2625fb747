"""The stream of chat/completions and completions: chunks with choices, `[DONE]` at the end. Pure."""

from typing import Any

import msgspec

from .sse import SseObserver, count_of

CHOICES_MAX = 1024  # followed per stream; APIs allow 128


class _Delta(msgspec.Struct, gc=False):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None
    audio: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: Any = 0
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Frame(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    error_type: Any = None
    object: Any = None
    code: Any = None
    message: Any = None
    type: Any = None


_decode = msgspec.json.Decoder(_Frame).decode
_ABORTED = ("abort", "error")  # finish reasons by which engines say that they gave up


class ChatObserver(SseObserver):
    """Watches one stream of chunks, with as many choices as the client asked for."""

    __slots__ = ("_choices", "_ended", "_open")

    def __init__(self, choices: int = 1) -> None:
        super().__init__()
        self._choices = min(choices, CHOICES_MAX)
        self._open: set[int] = set()
        self._ended: set[int] = set()

    @property
    def finished(self) -> bool:
        """Whether every choice has had its finish reason: all that were seen, and before [DONE] all asked for."""
        ended = len(self._ended)
        return ended > 0 and not self._open and (self.done or ended >= self._choices)

    def _end_mark(self) -> None:
        self.done = True

    def _payload(self, payload: bytes, *, is_error: bool = False) -> None:
        try:
            frame = _decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._malformed(is_error=is_error)
        if is_error or frame.error is not None or frame.object == "error":
            return self._note_error_frame(frame)
        if frame.usage is not None:
            self._note_usage(frame.usage)
        has_content = False
        for choice in frame.choices or ():
            has_content = _has_content(choice) or has_content
            if choice.finish_reason is not None:
                self._note_finish(choice.index, choice.finish_reason)
            else:
                self._note_open(choice.index)
        if has_content:
            self.content_chunks += 1
            self.content_started = True
        return None

    def _note_open(self, index: Any) -> None:
        if isinstance(index, int) and index not in self._ended and len(self._open) < CHOICES_MAX:
            self._open.add(index)

    def _note_finish(self, index: Any, reason: Any) -> None:
        if reason in _ABORTED:
            self._note_error({"message": "", "type": reason}, "")
        elif reason:
            index = index if isinstance(index, int) else 0
            self._open.discard(index)
            if len(self._ended) < CHOICES_MAX:
                self._ended.add(index)

    def _note_error_frame(self, frame: _Frame) -> None:
        if frame.error is not None:
            self._note_error(frame.error, frame.error_type)
        else:
            self._note_error({"message": frame.message, "type": frame.type, "code": frame.code}, "")

    def _note_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.prompt_tokens = count_of(usage.get("prompt_tokens"), self.prompt_tokens)
            self.completion_tokens = count_of(usage.get("completion_tokens"), self.completion_tokens)


def _has_content(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(
        delta.content
        or delta.reasoning
        or delta.reasoning_content
        or delta.tool_calls
        or delta.function_call
        or delta.refusal
        or delta.audio
        or choice.text
    )
