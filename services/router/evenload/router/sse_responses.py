"""The stream of OpenAI's responses: named, numbered events from `response.created` to its end. Pure.

It ends with `response.completed`, `.incomplete` or `.failed`, which carry the whole response with its usage. Every
delta with something in it is content; so is an item that is neither message nor reasoning, for then the model has
chosen a tool.
"""

from typing import Any

import msgspec

from evenload.api.errors import ApiError

from .sse import SseObserver, count_of, names_in

_TEXTS = ("message", "reasoning")
_ENDS = ("response.completed", "response.incomplete")
_FAILED = "response.failed"
# How codes of errors begin that are about the request. As a status they have none.
_CLIENTS = ("invalid_", "image_", "unsupported_", "empty_image", "failed_to_download_image")


class _Response(msgspec.Struct, gc=False):
    usage: Any = None
    error: Any = None


class _Item(msgspec.Struct, gc=False):
    type: Any = None


class _Event(msgspec.Struct, gc=False):
    type: Any = None
    sequence_number: Any = None
    delta: Any = None
    item: _Item | None = None
    partial_image_b64: Any = None
    response: _Response | None = None
    error: Any = None
    code: Any = None
    message: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class ResponsesObserver(SseObserver):
    """Watches one stream of a response."""

    __slots__ = ("_number",)

    def __init__(self, choices: int = 1) -> None:
        super().__init__(choices)
        self._number = -1

    def broken_off(self, error: ApiError, request_id: bytes) -> bytes:
        """Return the event that ends this stream when it cannot go on: `error`, with the next number.

        The object `error` beside the event's own fields is what OpenAI's clients raise for.
        """
        event: dict[str, Any] = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        event |= {"sequence_number": self._number + 1, **error.content(request_id)}
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"

    def _payload(self, payload: bytes, *, is_error: bool = False) -> None:
        try:
            event = _decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._malformed(is_error=is_error)
        kind = event.type
        if isinstance(event.sequence_number, int):
            self._number = event.sequence_number
        if is_error or kind == "error" or event.error:
            return self._note_error(
                self.typed(event.error if event.error is not None else {"code": event.code, "message": event.message})
            )
        if event.delta or event.partial_image_b64:
            self.content_chunks += 1
            self.content_started = True
        elif event.item is not None and event.item.type not in _TEXTS and kind == "response.output_item.added":
            self._content()
        if event.response is not None:
            self._note_response(kind, event.response)
        return None

    def _note_response(self, kind: Any, response: _Response) -> None:
        usage = response.usage
        if isinstance(usage, dict):
            self.prompt_tokens = count_of(usage.get("input_tokens"), self.prompt_tokens)
            self.completion_tokens = count_of(usage.get("output_tokens"), self.completion_tokens)
        self._note_end(kind, response.error)

    @property
    def finished(self) -> bool:
        """Whether the response has ended, and not by failing."""
        return self.done and self.error is None

    def _passed_oversized(self, ends: bytes) -> None:
        names = names_in(ends)  # the last event repeats the whole answer, which may be long
        for kind in (*_ENDS, _FAILED):
            if kind.encode() in names:
                self._note_end(kind, None)

    def _note_end(self, kind: Any, error: Any) -> None:
        if kind in _ENDS:
            self.done = True
        elif kind == _FAILED:
            self.done = True
            self._note_error(self.typed(error) if error is not None else {"type": "server_error"})

    @staticmethod
    def typed(error: Any) -> Any:
        """Say in the type what the code says of whose fault it is."""
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(code, str) and code.startswith(_CLIENTS):
            return {**error, "type": "invalid_request_error"}
        return error
