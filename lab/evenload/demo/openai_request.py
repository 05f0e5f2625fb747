"""What clients send to an engine, and vLLM 0.32's complaints about it, word for word.

Prompt tokens are *estimated*: one token per 4 bytes of UTF-8 text, rounded up; chat templates are not counted. Token id
lists count exactly. `n`, `logprobs`, tools and sampling parameters are accepted and ignored, except where vLLM would
refuse the value.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

import msgspec

BYTES_PER_TOKEN: Final = 4
_FIELDS_BY_KIND: Final = {
    "chat": ("messages",),
    "completion": ("prompt",),
    "embedding": ("input",),
    "response": ("input",),
    "message": ("messages", "max_tokens"),
}
_SYSTEM_BY_KIND: Final = {"response": "instructions", "message": "system"}  # a prompt that stands apart
_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")


class Kind(StrEnum):
    """The endpoints that compute."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RESPONSE = "response"
    MESSAGE = "message"


class BadRequestError(Exception):
    """A client error with vLLM's body.

    Attributes:
        status: HTTP status.
        body: JSON bytes.
    """

    def __init__(self, status: int, message: str, type_: str, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, type_, param)


@dataclass(frozen=True, slots=True)
class Generation:
    """A checked request.

    Attributes:
        prompt_tokens: Estimated tokens of the prompt.
        max_tokens: The client's limit; None is "up to the context length".
        min_tokens: Fewest tokens before an end of text.
        ignore_eos: Generate exactly `max_tokens`.
        stream: Whether to answer with server-sent events.
        include_usage: Whether the stream ends with a usage chunk.
        continuous_usage: Whether every chunk carries usage.
        inputs: Number of texts (embeddings).
    """

    kind: Kind
    prompt_tokens: int
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    inputs: int = 1


def error_body(status: int, message: str, type_: str, param: str | None = None) -> bytes:
    """Encode vLLM's error object."""
    return msgspec.json.encode({"error": {"message": message, "type": type_, "param": param, "code": status}})


def parse(kind: Kind, body: bytes, *, model: str, context_tokens: int) -> Generation:
    """Check a request body in vLLM's order: JSON, required field, values, model, length.

    Raises:
        BadRequestError: With the status and body that vLLM would answer.
    """
    document = _decode(body)
    for field in _FIELDS_BY_KIND[kind]:
        if field not in document:
            raise _validation("missing", f"body.{field}", "Field required", document)
    _check_values(document)
    asked = document.get("model")
    if asked is not None and asked != model:
        message = f"The model `{asked}` does not exist. Valid aliases: {model}."
        raise BadRequestError(404, message, "NotFoundError", "model")
    tokens, texts = _count_tokens(document[_FIELDS_BY_KIND[kind][0]])
    tokens += _count_tokens(document.get(_SYSTEM_BY_KIND.get(kind, "")))[0]
    generation = _generation(kind, document, (tokens, texts))
    _check_length(generation, context_tokens)
    return generation


def _decode(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _invalid_json(body) from None
    if not isinstance(document, dict):
        raise _validation("model_attributes_type", "body", "Input should be a valid dictionary", {})
    return document


def _invalid_json(body: bytes) -> BadRequestError:
    """The complaint comes from the standard library, whose wording vLLM passes on."""
    reason, position = "Invalid UTF-8", 0
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        reason, position = error.msg, error.pos
    except UnicodeDecodeError as error:
        position = error.start
    return _validation("json_invalid", f"body.{position}", "JSON decode error", {}, reason)


def _validation(
    type_: str, loc: str, text: str, document: dict[str, Any], reason: str | None = None
) -> BadRequestError:
    detail: dict[str, object] = {"type": type_, "loc": loc, "msg": text, "input": f"<dict of {len(document)} items>"}
    if reason is not None:
        detail["ctx"] = {"error": reason}
    return BadRequestError(400, f"1 validation error:\n  {detail}", "Bad Request", loc)


def _bad_value(name: str, value: object, complaint: str) -> BadRequestError:
    return BadRequestError(400, f"{complaint} (parameter={name}, value={value})", "BadRequestError", name)


def _check_values(document: dict[str, Any]) -> None:
    temperature = document.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        raise _bad_value(
            "temperature", float(temperature), f"temperature must be non-negative, got {float(temperature)}."
        )
    for name in _LIMITS:
        value = document.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise _validation("int_type", f"body.{name}", "Input should be a valid integer", document)
        if value is not None and value < 1:
            raise _bad_value(name, value, f"max_tokens must be at least 1, got {value}.")
    least = document.get("min_tokens")
    if least is not None and (not isinstance(least, int) or isinstance(least, bool)):
        raise _validation("int_type", "body.min_tokens", "Input should be a valid integer", document)
    if least is not None and least < 0:
        raise _bad_value("min_tokens", least, f"min_tokens must be greater than or equal to 0, got {least}.")


def _generation(kind: Kind, document: dict[str, Any], tokens: tuple[int, int]) -> Generation:
    options = document.get("stream_options")
    options = options if isinstance(options, dict) else {}
    limits = [document[name] for name in _LIMITS if document.get(name) is not None]
    return Generation(
        kind=kind,
        prompt_tokens=max(1, tokens[0]),
        max_tokens=cast("int | None", limits[0] if limits else None),
        min_tokens=document.get("min_tokens") or 0,
        ignore_eos=bool(document.get("ignore_eos")),
        stream=kind is not Kind.EMBEDDING and bool(document.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        inputs=tokens[1],
    )


def _check_length(generation: Generation, context_tokens: int) -> None:
    limit, prompt = generation.max_tokens, generation.prompt_tokens
    if limit is not None and limit > context_tokens:
        complaint = (
            f"max_tokens={limit} cannot be greater than max_model_len={context_tokens}. "
            "Please request fewer output tokens."
        )
        raise _bad_value("max_tokens", limit, complaint)
    if prompt + (limit or 1) > context_tokens:
        complaint = (
            f"This model's maximum context length is {context_tokens} tokens. However, your prompt contains at least "
            f"{prompt} input tokens, which exceeds this limit even without any output tokens. Please reduce the length "
            "of the input prompt."
        )
        if prompt < context_tokens and limit is not None:
            complaint = (
                f"This model's maximum context length is {context_tokens} tokens. However, you requested {limit} "
                f"output tokens and your prompt contains {prompt} input tokens, for a total of "
                f"{prompt + limit} tokens. Please reduce the length of the input prompt or the number of "
                "requested output tokens."
            )
        raise _bad_value("input_tokens", prompt, complaint)


def _count_tokens(value: object) -> tuple[int, int]:
    """(tokens, texts) of messages, a prompt, or a list of either."""
    if isinstance(value, str):
        return _text_tokens(value), 1
    if not isinstance(value, list):
        return 0, 1
    if value and all(isinstance(item, int) for item in value):
        return len(value), 1
    if value and isinstance(value[0], dict) and "text" in value[0]:
        return _part_tokens(value), 1
    if value and isinstance(value[0], dict):
        return sum(_message_tokens(item) for item in value if isinstance(item, dict)), 1
    counted = [_count_tokens(item)[0] for item in value]
    return sum(counted), len(counted)


def _message_tokens(message: dict[str, Any]) -> int:
    content = message.get("content")
    if isinstance(content, str):
        return _text_tokens(content)
    if not isinstance(content, list):
        return 0
    return _part_tokens(content)


def _part_tokens(parts: list[Any]) -> int:
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return sum(_text_tokens(text) for text in texts if isinstance(text, str))


def _text_tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)
