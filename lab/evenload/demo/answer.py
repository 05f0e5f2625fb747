"""One request in flight on a simulated engine: from the engine's token counts to bytes for the client."""

import time

from evenload.demo.faults import Cut, CutHow
from evenload.demo.http_server import Exchange
from evenload.demo.messages_answer import MessageFrames, message_body, message_error
from evenload.demo.openai_answer import DONE_FRAME, Frames, Voice, embedding_body, error_frame, json_body
from evenload.demo.openai_request import Generation, Kind, error_body
from evenload.demo.responses_answer import ResponseFrames, response_body, response_error

AnyFrames = Frames | MessageFrames | ResponseFrames
_BODIES = {Kind.MESSAGE: message_body, Kind.RESPONSE: response_body}


def error_frames(kind: Kind, status: int, message: str, type_: str) -> tuple[bytes, ...]:
    """How a stream of this kind ends that cannot go on."""
    if kind is Kind.MESSAGE:
        return (message_error(message),)
    if kind is Kind.RESPONSE:
        return (response_error(message, status),)
    return error_frame(status, message, type_), DONE_FRAME


def _frames(voice: Voice, generation: Generation) -> AnyFrames:
    if generation.kind is Kind.MESSAGE:
        return MessageFrames(voice)
    if generation.kind is Kind.RESPONSE:
        return ResponseFrames(voice)
    return Frames(voice, include_usage=generation.include_usage, continuous_usage=generation.continuous_usage)


class Answer:
    """Writes the answer to one request as its tokens appear.

    Args:
        exchange: Where to write.
        generation: What was asked.
        voice: Who answers.
        output_tokens: Tokens the answer will have.
        reason: `stop` or `length`.
        cut: A fault that ends this answer early.
    """

    __slots__ = (
        "arrived_s",
        "cut",
        "exchange",
        "first_s",
        "frames",
        "generation",
        "last_s",
        "output_tokens",
        "reason",
        "sent",
        "voice",
    )

    def __init__(
        self,
        exchange: Exchange,
        generation: Generation,
        voice: Voice,
        *,
        output_tokens: int,
        reason: str,
        cut: Cut | None,
    ) -> None:
        self.exchange = exchange
        self.generation = generation
        self.voice = voice
        self.output_tokens = output_tokens
        self.reason = reason
        self.cut = cut
        self.sent = 0
        self.arrived_s = self.last_s = time.perf_counter()
        self.first_s: float | None = None
        self.frames = _frames(voice, generation) if generation.stream else None

    def open(self) -> None:
        """The request was accepted: a stream's head leaves before its first token, as in vLLM."""
        if self.generation.stream:
            self.exchange.start_stream()

    def show(self, tokens: int, now_s: float) -> bool:
        """Write all tokens up to number `tokens`.

        Returns:
            True when the answer is over, complete or cut.
        """
        if self.first_s is None:
            self.first_s = now_s
        cut = self.cut
        limit = tokens if cut is None else min(tokens, cut.after_tokens)
        if self.frames is not None:
            self._write(self.frames, limit)
        self.sent = limit
        self.last_s = now_s
        if cut is not None and (limit == cut.after_tokens or tokens == self.output_tokens):
            self._cut(cut.how)
            return True
        if tokens < self.output_tokens:
            return False
        self._complete()
        return True

    def fail(self, status: int, message: str, type_: str) -> None:
        """End with an error and nothing else wrong: as a stream of its kind says it, else by a status."""
        if not self.exchange.started:
            self.exchange.respond(status, error_body(status, message, type_))
        else:
            self.exchange.send(*error_frames(self.generation.kind, status, message, type_))
            self.exchange.end()

    def _write(self, frames: AnyFrames, tokens: int) -> None:
        parts = frames.opening() if self.sent == 0 else ()
        plain = min(tokens, self.output_tokens - 1)
        parts += tuple(frames.token(index) for index in range(self.sent, plain))
        if tokens == self.output_tokens and self.cut is None:
            parts += frames.closing(tokens, self.reason)
        if parts:
            self.exchange.send(*parts)

    def _complete(self) -> None:
        if self.frames is not None:
            self.exchange.end()
        elif self.generation.kind is Kind.EMBEDDING:
            self.exchange.respond(200, embedding_body(self.voice, self.generation.inputs))
        else:
            body = _BODIES.get(self.generation.kind, json_body)
            self.exchange.respond(200, body(self.voice, self.output_tokens, self.reason))

    def _cut(self, how: CutHow) -> None:
        if how is CutHow.ABORT and self.exchange.started and self.frames is not None:
            self.exchange.send(*self.frames.closing(self.sent + 1, "abort"))
            self.exchange.end()
        elif how in (CutHow.END, CutHow.ABORT) and self.exchange.started:
            self.exchange.end()
        else:
            self.exchange.cut(reset=how is CutHow.RESET)
