"""Streams of Anthropic's messages and OpenAI's responses for scripts, in the shapes that vLLM 0.32 sends."""

import json

from .fake_wire import Step, sse


def event(kind: str, **fields: object) -> bytes:
    """Return one named event."""
    data = json.dumps({"type": kind, **fields}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


def message_start(input_tokens: int = 11, model: str = "tiny") -> bytes:
    """Return how a message begins: nothing of its content."""
    message: dict[str, object] = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": model}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": input_tokens, "output_tokens": 1}}
    block = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    return event("message_start", message=message) + block


def message_text(text: str) -> bytes:
    """Return some text of a message."""
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


def message_end(output_tokens: int) -> bytes:
    """Return how a message ends, in three events."""
    usage = {"output_tokens": output_tokens}
    delta = event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage=usage)
    return event("content_block_stop", index=0) + delta + event("message_stop")


def message_error(kind: str, text: str) -> bytes:
    """Return an error event of a message."""
    return event("error", error={"type": kind, "message": text})


def message(*texts: str) -> list[Step]:
    """Return the script of a whole message."""
    return sse(message_start(), *(message_text(text) for text in texts), message_end(len(texts)))


def _response(status: str, model: str, **fields: object) -> dict[str, object]:
    response: dict[str, object] = {"id": "resp_1", "object": "response", "created_at": 1, "model": model}
    return response | {"output": [], "tools": [], "status": status, "usage": None, "error": None, **fields}


def response_start(model: str = "tiny") -> bytes:
    """Return how a response begins: nothing of its content."""
    created = event("response.created", sequence_number=0, response=_response("in_progress", model))
    item = {"id": "msg_1", "content": [], "role": "assistant", "status": "in_progress", "type": "message"}
    added = event("response.output_item.added", sequence_number=1, output_index=0, item=item)
    part = {"type": "output_text", "text": "", "annotations": []}
    return created + added + event("response.content_part.added", **_place(2), part=part)


def _place(number: int) -> dict[str, object]:
    return {"sequence_number": number, "item_id": "msg_1", "output_index": 0, "content_index": 0}


def response_text(text: str, number: int = 3) -> bytes:
    """Return some text of a response."""
    return event("response.output_text.delta", **_place(number), delta=text, logprobs=[])


def response_end(text: str, output_tokens: int, *, status: str = "completed", model: str = "tiny") -> bytes:
    """Return how a response ends: with all of it."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"id": "msg_1", "content": content, "role": "assistant", "status": status, "type": "message"}
    usage: dict[str, object] = {"input_tokens": 11, "output_tokens": output_tokens, "total_tokens": 11 + output_tokens}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    whole = _response(status, model, output=[item], usage=usage)
    return event(f"response.{status}", sequence_number=99, response=whole)


def response_failed(code: str, text: str) -> bytes:
    """Return how a response ends that failed."""
    whole = _response("failed", "tiny", error={"code": code, "message": text})
    return event("response.failed", sequence_number=99, response=whole)


def responses(*texts: str) -> list[Step]:
    """Return the script of a whole response."""
    return sse(response_start(), *(response_text(text) for text in texts), response_end("".join(texts), len(texts)))
