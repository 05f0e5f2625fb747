"""What a JSON answer that is whole says of itself: an error inside a 200, and the tokens that were counted. Pure."""

import json
from typing import Any

import msgspec

from .error_fields import tencents
from .sse import count_of


class Usage(msgspec.Struct, gc=False):
    """The field `usage`, in either API's form."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    input_tokens: Any = None
    output_tokens: Any = None
    cache_creation_input_tokens: Any = None
    cache_read_input_tokens: Any = None

    @property
    def prompt(self) -> int | None:
        """All tokens of the prompt; Anthropic counts those of its cache apart."""
        if self.prompt_tokens is not None:
            return count_of(self.prompt_tokens, None)
        new = count_of(self.input_tokens, None)
        created, read = count_of(self.cache_creation_input_tokens, 0), count_of(self.cache_read_input_tokens, 0)
        return None if new is None else new + (created or 0) + (read or 0)

    @property
    def output(self) -> Any:
        """Tokens of the answer."""
        return self.output_tokens if self.completion_tokens is None else self.completion_tokens


class Answer(msgspec.Struct, gc=False):
    """What is looked at of an answer."""

    usage: Usage | None = None
    error: Any = None
    response: Any = msgspec.field(default=None, name="Response")


_decode = msgspec.json.Decoder(Answer).decode


def read_answer(body: bytes) -> Answer | None:
    """Return what an answer says, nothing if it is another JSON object; None if it is none."""
    try:
        answer = _decode(body)
        if answer.response is not None and not answer.error:
            answer.error = tencents(answer.response)
        return answer
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Answer() if _is_object(body) else None


def may_be_object(beginning: bytes) -> bool:
    """Tell whether a JSON object may begin so."""
    return beginning.lstrip(b" \t\r\n")[:1] == b"{"


def _is_object(body: bytes) -> bool:
    """Tell it for what msgspec does not take: members of another type; NaN or broken characters, as engines send."""
    try:
        return isinstance(json.loads(body.decode("utf-8-sig", "replace")), dict)
    except RecursionError:
        return may_be_object(body)
    except ValueError:
        return False
