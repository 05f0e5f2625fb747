"""One streaming chat request over a connection of its own, at the cost of an asyncio protocol and httptools.

TTFT ends at the first content: a role frame, a comment or an empty text does not stop the clock.
"""

import asyncio
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

INSTANCE_HEADER: Final = "x-evenload-instance"
FRAME_BYTES_MAX: Final = 1024 * 1024  # an event longer than this is not one
_FINISH = b'"finish_reason":"'
_CONTENT_KEYS = ("content", "text", "reasoning", "reasoning_content", "tool_calls")


class Outcome(StrEnum):
    """How a request ended for the client."""

    OK = "ok"
    HTTP_ERROR = "http_error"
    STREAM_ERROR = "stream_error"  # an error event inside a 200 stream
    CUT = "cut"  # no finish reason, no [DONE], or the connection died
    CONNECT_ERROR = "connect_error"  # every router refused
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a router listens."""

    url: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Target":
        """Parse a base URL.

        Raises:
            ValueError: Not `http://host:port`.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"router URL must look like http://host:port, got {url!r}")
        return cls(url.rstrip("/"), parts.hostname, parts.port or 80)

    def request(self, body: bytes) -> bytes:
        """The bytes of a chat request."""
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self.host}:{self.port}\r\ncontent-type: application/json\r\n"
            f"accept: text/event-stream\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode("ascii") + body


class ChatStream(asyncio.Protocol):
    """Reads one answer.

    Attributes:
        finished: Done when the answer is over, however it ended.
        first_s: Loop time of the first content.
        tokens: Frames with content.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, request: bytes) -> None:
        self._loop = loop
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._finish_seen = self._done_seen = self._error_seen = self._complete = False
        self.finished: asyncio.Future[None] = loop.create_future()
        self.first_s: float | None = None
        self.status: int | None = None
        self.instance: str | None = None
        self.tokens = 0

    @property
    def outcome(self) -> Outcome:
        """What the bytes so far amount to."""
        if self.status is not None and self.status != 200:
            return Outcome.HTTP_ERROR
        if self._error_seen:
            return Outcome.STREAM_ERROR
        return Outcome.OK if self._complete and self._done_seen and self._finish_seen else Outcome.CUT

    def close(self) -> None:
        """Leave."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._error_seen = True
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The answer is over."""
        del exc
        self._transport = None
        if not self.finished.done():
            self.finished.set_result(None)

    # -- httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note who answered."""
        if name.lower() == INSTANCE_HEADER.encode():
            self.instance = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Note the status."""
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Scan whole events; a piece of one waits for its rest."""
        if self.status != 200:
            return
        *frames, self._rest = (self._rest + body).split(b"\n\n")
        for frame in frames:
            self._scan(frame)
        if len(self._rest) > FRAME_BYTES_MAX:
            self._error_seen = True
            self.close()

    def on_message_complete(self) -> None:
        """The body is whole."""
        self._complete = True
        if self._transport is not None:
            self._transport.close()
        if not self.finished.done():
            self.finished.set_result(None)

    def _scan(self, frame: bytes) -> None:
        if not frame.startswith(b"data:"):
            return
        data = frame[5:].lstrip()
        if data == b"[DONE]":
            self._done_seen = True
        elif data.startswith(b'{"error"') or data.startswith(b'{"type":"error"'):
            self._error_seen = True
        else:
            if self.first_s is None:
                if not _has_content(data):
                    return
                self.first_s = self._loop.time()
            if _FINISH in data:
                self._finish_seen = True
            self.tokens += b'"choices":[]' not in data


def _has_content(data: bytes) -> bool:
    """Whether an event carries something the reader waits for; called until the first one that does."""
    try:
        choices = json.loads(data).get("choices") or []
    except (ValueError, AttributeError):
        return False
    for choice in choices:
        delta = choice.get("delta") or choice
        if any(delta.get(key) for key in _CONTENT_KEYS) or choice.get("finish_reason"):
            return True
    return False
