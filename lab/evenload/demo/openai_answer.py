"""Answers in vLLM 0.32's shapes: SSE frames, JSON bodies, in-stream errors. Pure; key order is part of the shape.

The text is made of words of three letters and a blank, so that its bytes per token agree with how prompts are counted.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from evenload.demo.openai_request import Kind

_THREE_LETTERS: Final = (
    "the and for you can one two all now get see how day way may use say her his old new big end far few run set "
    "top try ask add air arm art bed box boy bus buy car cat cup cut dog dry ear eat egg eye fly fun hat hot ice "
    "job key kid law leg let lie lot low map mix net nor off oil own"
)
WORDS: Final = tuple(" " + word for word in _THREE_LETTERS.split())
DONE_FRAME: Final = b"data: [DONE]\n\n"
BUSY: Final = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)


def _compact(value: object) -> str:
    return msgspec.json.encode(value).decode()


def error_frame(status: int, message: str, type_: str) -> bytes:
    """An error event inside a stream; vLLM writes this one with blanks."""
    error = {"message": message, "type": type_, "param": None, "code": status}
    return f"data: {json.dumps({'error': error})}\n\n".encode()


def named_event(event: dict[str, Any]) -> bytes:
    """An event that is named after its type, as messages and responses have them."""
    return f"event: {event['type']}\ndata: {_compact(event)}\n\n".encode()


@dataclass(frozen=True, slots=True)
class Voice:
    """Who answers: what all answers of one request share.

    Attributes:
        first_word: Where in `WORDS` the text of this request starts.
        split_every: One token of so many is a part of a character and has no text; 0 for none.
    """

    kind: Kind
    id: str
    created: int
    model: str
    fingerprint: str
    prompt_tokens: int
    first_word: int
    split_every: int = 0

    def word(self, index: int) -> str:
        """The text of token number `index`, from 0."""
        word = WORDS[(self.first_word + index) % len(WORDS)]
        if self.split_every and index % self.split_every == self.split_every - 1:
            return ""
        if self.split_every and index and index % self.split_every == 0:
            return WORDS[(self.first_word + index - 1) % len(WORDS)] + word
        return word

    def text(self, tokens: int, reason: str) -> str:
        """The text of the whole answer; the last token of one that stopped by itself is the end of text."""
        return "".join(self.word(index) for index in range(tokens - 1 if reason == "stop" else tokens))

    def usage(self, tokens: int, **details: None) -> dict[str, Any]:
        """The usage object after `tokens` output tokens."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "completion_tokens": tokens,
            **details,
        }


class Frames:
    """The SSE frames of one request; all but the text of a frame is computed once."""

    __slots__ = ("_after", "_before", "_continuous", "_head", "_include_usage", "_voice")

    def __init__(self, voice: Voice, *, include_usage: bool, continuous_usage: bool) -> None:
        self._voice = voice
        self._include_usage = include_usage
        self._continuous = continuous_usage
        object_ = "chat.completion.chunk" if voice.kind is Kind.CHAT else "text_completion"
        head = _compact({"id": voice.id, "object": object_, "created": voice.created, "model": voice.model})[:-1]
        self._head = f'data: {head},"choices":['
        if voice.kind is Kind.CHAT:
            self._before = f'{self._head}{{"index":0,"delta":{{"content":"'
            self._after = '"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
        else:
            self._before = f'{self._head}{{"index":0,"text":"'
            self._after = (
                '","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
            )

    def opening(self) -> tuple[bytes, ...]:
        """What comes before the first token: the role frame of a chat."""
        if self._voice.kind is not Kind.CHAT:
            return ()
        choice = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return (f'{self._head}{choice}{self._usage(0)},"prompt_token_ids":null,"prompt_text":null}}\n\n'.encode(),)

    def token(self, index: int) -> bytes:
        """The frame of output token number `index`, from 0, which is not the last one."""
        return f"{self._before}{self._voice.word(index)}{self._after}{self._usage(index + 1)}}}\n\n".encode()

    def closing(self, tokens: int, reason: str) -> tuple[bytes, ...]:
        """The last token with its finish reason, usage when asked for, and the end mark.

        A text that stopped by itself ends with an empty text: its last token is the end of text.
        """
        text = "" if reason == "stop" else self._voice.word(tokens - 1)
        fingerprint = "" if self._include_usage else f',"system_fingerprint":"{self._voice.fingerprint}"'
        if self._voice.kind is Kind.CHAT:
            choice = (
                f'{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":"{reason}",'
                '"stop_reason":null,"token_ids":null}]'
            )
        else:
            choice = (
                f'{{"index":0,"text":"{text}","logprobs":null,"finish_reason":"{reason}","stop_reason":null,'
                '"prompt_token_ids":null,"token_ids":null}]'
            )
        last = f"{self._head}{choice}{self._usage(tokens)}{fingerprint}}}\n\n".encode()
        if not self._include_usage:
            return (last, DONE_FRAME)
        usage = _compact(self._voice.usage(tokens))
        tail = f'{self._head}],"usage":{usage},"system_fingerprint":"{self._voice.fingerprint}"}}\n\n'
        return (last, tail.encode(), DONE_FRAME)

    def _usage(self, tokens: int) -> str:
        if not self._continuous:
            return ""
        return f',"usage":{_compact(self._voice.usage(tokens, completion_tokens_details=None))}'


def json_body(voice: Voice, tokens: int, reason: str) -> bytes:
    """The answer to a request without streaming."""
    text = voice.text(tokens, reason)
    usage = voice.usage(tokens, prompt_tokens_details=None, completion_tokens_details=None)
    if voice.kind is Kind.CHAT:
        return _chat_body(voice, text, reason, usage)
    choice = {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }
    return msgspec.json.encode(
        {
            "id": voice.id,
            "object": "text_completion",
            "created": voice.created,
            "model": voice.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": voice.fingerprint,
            "usage": usage,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
    )


def _chat_body(voice: Voice, text: str, reason: str, usage: dict[str, Any]) -> bytes:
    message = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }
    return msgspec.json.encode(
        {
            "id": voice.id,
            "object": "chat.completion",
            "created": voice.created,
            "model": voice.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": voice.fingerprint,
            "usage": usage,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
    )


def embedding_body(voice: Voice, inputs: int) -> bytes:
    """Vectors of 8 small numbers, one per text."""
    data = [
        {
            "index": index,
            "object": "embedding",
            "embedding": [((voice.first_word + index + i) % 17 - 8) / 8 for i in range(8)],
        }
        for index in range(inputs)
    ]
    usage = {**voice.usage(0), "prompt_tokens_details": None}
    return msgspec.json.encode(
        {"id": voice.id, "object": "list", "created": voice.created, "model": voice.model, "data": data, "usage": usage}
    )


def models_body(model: str, created: int, context_tokens: int, permission_id: str) -> bytes:
    """The list of models: one."""
    permission = {
        "id": permission_id,
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": f"models/{model}",
        "parent": None,
        "max_model_len": context_tokens,
        "permission": [permission],
    }
    return msgspec.json.encode({"object": "list", "data": [card]})
