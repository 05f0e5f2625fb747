"""The streams that tests send through each endpoint: how one begins, goes on, ends, and tells an error."""

from dataclasses import dataclass

import pytest

from evenload.router import fake_protocols as wire
from evenload.router.fake_wire import DONE, content, error_frame, finish, frame, role, usage
from tests.router.stage import BUSY

ASKED = {"model": "tiny", "stream": True, "input": "Hello", "prompt": "Hello", "messages": [], "max_tokens": 5}


@dataclass(frozen=True)
class Protocol:
    """One kind of stream: how it begins, goes on, ends, and tells an error before content."""

    path: str
    start: bytes
    text: bytes
    end: bytes
    bad: bytes
    bad_means: tuple[str, str] = ("saturated", "engine_busy")

    @property
    def whole(self) -> bytes:
        return self.start + self.text + self.text + self.end


def _text(text: str) -> bytes:
    return frame({"choices": [{"index": 0, "text": text, "finish_reason": None}]})


CHAT = Protocol(
    "/v1/chat/completions", role(), content("x"), finish() + usage(11, 2) + DONE, error_frame(503, BUSY) + DONE
)
COMPLETIONS = Protocol(
    "/v1/completions",
    b": ping\n\n",
    _text("x"),
    frame({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}) + usage(11, 2) + DONE,
    error_frame(503, BUSY) + DONE,
)
MESSAGES = Protocol(
    "/v1/messages",
    wire.message_start(),
    wire.message_text("x"),
    wire.message_end(2),
    wire.message_error("overloaded_error", "Overloaded"),
)
RESPONSES = Protocol(
    "/v1/responses",
    wire.response_start(),
    wire.response_text("x"),
    wire.response_end("xx", 2),
    wire.response_failed("server_error", "boom"),
    ("stream_error", "error_event"),
)
SPEECH = Protocol(
    "/v1/audio/speech",
    b": ping\n\n",
    wire.event("speech.audio.delta", audio="AAAA"),
    wire.event("speech.audio.done", usage={"input_tokens": 11, "output_tokens": 2}),
    wire.event("error", error={"type": "server_error", "code": 503, "message": BUSY}),
)
PROTOCOLS = [CHAT, COMPLETIONS, MESSAGES, RESPONSES, SPEECH]
each_protocol = pytest.mark.parametrize("p", PROTOCOLS, ids=lambda p: p.path)
