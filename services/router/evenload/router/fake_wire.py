"""Bytes and steps that scripts of `fakes.ScriptedUpstream` are made of."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stall:
    """Do nothing until the peer leaves, or for `seconds`."""

    seconds: float | None = None


@dataclass(frozen=True)
class Gate:
    """Go on when the event is set or the peer leaves."""

    event: asyncio.Event


@dataclass(frozen=True)
class Trickle:
    """Write `data` in pieces of `size` bytes, each in a segment of its own."""

    data: bytes
    size: int = 1


class Cut:
    """End the connection in order (FIN)."""


class Reset:
    """End the connection with RST."""


Step = bytes | Stall | Gate | Trickle | Cut | Reset
Script = Sequence[Step]


def response(status: int, body: bytes, *headers: tuple[str, str], content_type: str = "application/json") -> bytes:
    """Return a whole response with a content-length."""
    lines = [f"HTTP/1.1 {status} Scripted", f"content-type: {content_type}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def error(status: int, message: str, *headers: tuple[str, str], code: object = None) -> bytes:
    """Return an error response in OpenAI's form."""
    body = {"error": {"message": message, "type": "Scripted", "param": None, "code": status if code is None else code}}
    return response(status, json.dumps(body).encode(), *headers)


SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"server: scripted\r\ntransfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """Return one chunk of the chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def frame(value: object) -> bytes:
    """Return one data frame with compact JSON, as engines write it."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def delta(finish_reason: str | None = None, **fields: object) -> bytes:
    """Return a chat frame with the given delta."""
    choice = {"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish_reason}
    return frame({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "tiny", "choices": [choice]})


def role() -> bytes:
    """Return the role-only frame that streams begin with."""
    return delta(role="assistant", content="")


def content(text: str) -> bytes:
    """Return a frame with content."""
    return delta(content=text)


def finish(reason: str = "stop") -> bytes:
    """Return the frame with the finish reason."""
    return delta(finish_reason=reason, content="")


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    """Return the last frame of a stream whose client asked for usage."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return frame({"object": "chat.completion.chunk", "choices": [], "usage": counts})


def error_frame(code: int, message: str) -> bytes:
    """Return an error event as vLLM sends it."""
    return frame({"error": {"message": message, "type": "Scripted", "param": None, "code": code}})


def sse(*frames: bytes, end: bool = True) -> list[Step]:
    """Return the script of a stream, one HTTP chunk per frame."""
    steps: list[Step] = [SSE_HEAD, *(chunk(one) for one in frames)]
    return [*steps, END] if end else steps


def answer(*texts: str) -> list[Step]:
    """Return the script of a usual, whole stream."""
    return sse(role(), *(content(text) for text in texts), finish(), usage(11, len(texts)), DONE)
