"""Answers of `/v1/responses` in vLLM 0.32's shapes: OpenAI's numbered events, and the whole response. Pure.

Of the many fields of a response those are left out that only repeat what the client did not ask for.
"""

from typing import Any

import msgspec

from evenload.demo.openai_answer import Voice, named_event


class ResponseFrames:
    """The events of one response, numbered from 0."""

    __slots__ = ("_number", "_place", "_voice")

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._number = -1
        self._place = {"item_id": _item_id(voice), "output_index": 0, "content_index": 0}

    def opening(self) -> tuple[bytes, ...]:
        """What comes before the first token: the response, its message, and the message's part."""
        response = _response(self._voice, [], "in_progress", None)
        return (
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
            self._event("response.output_item.added", item=_item(self._voice, [], "in_progress"), output_index=0),
            self._event("response.content_part.added", **self._place, part=_part("")),
        )

    def token(self, index: int) -> bytes:
        """The event of output token number `index`, from 0, which is not the last one."""
        return self._event("response.output_text.delta", **self._place, delta=self._voice.word(index), logprobs=[])

    def closing(self, tokens: int, reason: str) -> tuple[bytes, ...]:
        """The last token, unless it is the end of text, and the whole once more at each level."""
        text = self._voice.text(tokens, reason)
        item = _item(self._voice, [_part(text)], "completed")
        last = () if reason == "stop" else (self.token(tokens - 1),)
        return (
            *last,
            self._event("response.output_text.done", **self._place, text=text, logprobs=[]),
            self._event("response.content_part.done", **self._place, part=_part(text)),
            self._event("response.output_item.done", item=item, output_index=0),
            self._event("response.completed", response=_complete(self._voice, tokens, reason)),
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return named_event({**fields, "sequence_number": self._number, "type": kind})


def response_body(voice: Voice, tokens: int, reason: str) -> bytes:
    """The answer to a request without streaming."""
    return msgspec.json.encode(_complete(voice, tokens, reason))


def response_error(message: str, code: int) -> bytes:
    """The event of a stream that cannot go on."""
    event = {"type": "error", "code": str(code), "message": message, "param": None, "sequence_number": 0}
    return named_event(event)


def _complete(voice: Voice, tokens: int, reason: str) -> dict[str, Any]:
    item = _item(voice, [_part(voice.text(tokens, reason))], "completed")
    usage = {
        "input_tokens": voice.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": voice.prompt_tokens + tokens,
    }
    return _response(voice, [item], "completed" if reason == "stop" else "incomplete", usage)


def _response(voice: Voice, output: list[dict[str, Any]], status: str, usage: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": voice.id,
        "created_at": voice.created,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": None,
        "model": voice.model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "none",
        "tools": [],
        "background": False,
        "status": status,
        "usage": usage,
    }


def _item(voice: Voice, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": _item_id(voice), "content": content, "role": "assistant", "status": status, "type": "message"}


def _item_id(voice: Voice) -> str:
    return "msg_" + voice.id.partition("_")[2]


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}
