"""Answers of `/v1/messages` in vLLM 0.32's shapes: Anthropic's named events, and the whole message. Pure."""

from typing import Any, Final

import msgspec

from evenload.demo.openai_answer import Voice, named_event

_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens"}


class MessageFrames:
    """The events of one message."""

    __slots__ = ("_voice",)

    def __init__(self, voice: Voice) -> None:
        self._voice = voice

    def opening(self) -> tuple[bytes, ...]:
        """What comes before the first token: the message, and its one block of text."""
        message = {**_message(self._voice, [], None), "usage": _usage(self._voice, 0)}
        block = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}
        return named_event({"type": "message_start", "message": message}), named_event(block)

    def token(self, index: int) -> bytes:
        """The event of output token number `index`, from 0, which is not the last one."""
        delta = {"type": "text_delta", "text": self._voice.word(index)}
        return named_event({"type": "content_block_delta", "delta": delta, "index": 0})

    def closing(self, tokens: int, reason: str) -> tuple[bytes, ...]:
        """The last token, unless it is the end of text, and how the message ended."""
        last = () if reason == "stop" else (self.token(tokens - 1),)
        delta = {"stop_reason": _STOP_REASONS[reason], "stop_sequence": None}
        return (
            *last,
            named_event({"type": "content_block_stop", "index": 0}),
            named_event({"type": "message_delta", "delta": delta, "usage": _usage(self._voice, tokens)}),
            named_event({"type": "message_stop"}),
        )


def message_body(voice: Voice, tokens: int, reason: str) -> bytes:
    """The answer to a request without streaming."""
    content = [{"type": "text", "text": voice.text(tokens, reason)}]
    return msgspec.json.encode({**_message(voice, content, _STOP_REASONS[reason]), "usage": _usage(voice, tokens)})


def message_error(message: str) -> bytes:
    """The event of a stream that cannot go on."""
    return named_event({"type": "error", "error": {"type": "overloaded_error", "message": message}})


def _message(voice: Voice, content: list[dict[str, str]], stop_reason: str | None) -> dict[str, Any]:
    return {
        "id": voice.id,
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": voice.model,
        "stop_reason": stop_reason,
        "stop_sequence": None,
    }


def _usage(voice: Voice, tokens: int) -> dict[str, int]:
    return {"input_tokens": voice.prompt_tokens, "output_tokens": tokens}
