"""The stream of Anthropic's messages: named events from `message_start` to `message_stop`. Pure.

Text, thinking and the arguments of tools are content; so is a block that opens with more than text, for then the model
has chosen a tool. Prompt tokens are all that were read: new, written to the cache, and read from it.
"""

from typing import Any

import msgspec

from evenload.api.errors import ApiError

from .sse import SseObserver, count_of

_TEXTS = ("text", "thinking")


class _Delta(msgspec.Struct, gc=False):
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    citation: Any = None


class _Block(msgspec.Struct, gc=False):
    type: Any = None
    text: Any = None
    thinking: Any = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    cache_read_input_tokens: Any = None
    output_tokens: Any = None


class _Message(msgspec.Struct, gc=False):
    usage: _Usage | None = None


class _Event(msgspec.Struct, gc=False):
    type: Any = None
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | str | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class MessagesObserver(SseObserver):
    """Watches one stream of a message."""

    __slots__ = ("_created", "_new", "_read")

    def __init__(self, choices: int = 1) -> None:
        super().__init__(choices)
        self._new: int | None = None
        self._created: int | None = None
        self._read: int | None = None

    def broken_off(self, error: ApiError, request_id: bytes) -> bytes:
        """Return the event that ends this stream when it cannot go on."""
        return b"event: error\ndata: " + error.body(request_id, "anthropic") + b"\n\n"

    def _payload(self, payload: bytes, *, is_error: bool = False) -> None:
        try:
            event = _decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._malformed(is_error=is_error)
        kind = event.type
        if is_error or kind == "error" or event.error:
            return self._note_error(event.error if event.error is not None else {"message": event.message})
        if kind == "content_block_delta":
            delta = event.delta
            if delta is not None and (delta.text or delta.thinking or delta.partial_json or delta.citation):
                self.content_chunks += 1
                self.content_started = True
        elif kind == "message_stop":
            self.done = True
        else:
            self._note_rest(event)
        return None

    def _note_rest(self, event: _Event) -> None:
        block = event.content_block
        if block is not None and (block.type not in _TEXTS or block.text or block.thinking):
            self._content()
        if isinstance(event.message, _Message) and event.message.usage is not None:
            self._note_prompt(event.message.usage)  # its output tokens are those of a beginning
        if event.usage is not None:
            self._note_prompt(event.usage)
            self.completion_tokens = count_of(event.usage.output_tokens, self.completion_tokens)

    def _note_prompt(self, usage: _Usage) -> None:
        self._new = count_of(usage.input_tokens, self._new)
        self._created = count_of(usage.cache_creation_input_tokens, self._created)
        self._read = count_of(usage.cache_read_input_tokens, self._read)
        if self._new is not None:
            self.prompt_tokens = self._new + (self._created or 0) + (self._read or 0)
