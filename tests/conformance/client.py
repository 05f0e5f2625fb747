"""The suite's own client, on h11: a parser that neither Evenload nor its fakes use, and a strict one."""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import h11

PATIENCE_S = 15.0  # of any single wait; slow peers retry with seconds of back-off

Headers = list[tuple[bytes, bytes]]


@dataclass
class Reply:
    """An answer as the client saw it.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        headers: lower-case names, in order.
        body: what came, framing removed.
        whole: whether it ended as its framing says.
        broken: what was wrong with it otherwise.
    """

    status: int = 0
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    whole: bool = False
    broken: str = ""

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def json(self) -> Any:
        """The body as JSON; None when it is not."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def events(self) -> list[Any]:
        """The JSON of each data event."""
        lines = self.body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        found = []
        for line in lines:
            payload = line[5:].strip() if line.startswith(b"data:") else b""
            if payload.startswith(b"{"):
                try:
                    found.append(json.loads(payload))
                except ValueError:
                    found.append({"unreadable": True})
        return found

    @property
    def text(self) -> str:
        """What the model said, of a stream or of an answer."""
        if isinstance(self.json, dict):
            choices = self.json.get("choices") or [{}]
            return str((choices[0].get("message") or {}).get("content") or choices[0].get("text") or "")
        choices = [choice for event in self.events for choice in event.get("choices") or ()]
        return "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)

    @property
    def says_broken(self) -> bool:
        """Whether a client can tell that this is not a whole, good answer."""
        is_error = isinstance(self.json, dict) and "error" in self.json
        return self.status >= 400 or not self.whole or is_error or any("error" in event for event in self.events)

    @property
    def error(self) -> Any:
        """The error object in OpenAI's form, None if there is none."""
        found = self.json.get("error") if isinstance(self.json, dict) else None
        return found if isinstance(found, dict) and isinstance(found.get("message"), str) else None

    def __str__(self) -> str:
        end = "" if self.whole else f", not whole ({self.broken})"
        return f"status {self.status}{end}, {len(self.body)} bytes: {self.body[:120]!r}"


class Wire:
    """One connection of a client."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def send(
        self,
        path: str,
        body: bytes,
        *headers: tuple[bytes, bytes],
        method: str = "POST",
        chunked: bool = False,
        version: bytes = b"1.1",
    ) -> None:
        """Send a request."""
        if self._parser.our_state is not h11.IDLE:
            self._parser.start_next_cycle()
        length = (b"transfer-encoding", b"chunked") if chunked else (b"content-length", b"%d" % len(body))
        fixed = [(b"host", f"{self._host}:{self._port}".encode()), (b"content-type", b"application/json"), length]
        head = h11.Request(method=method, target=path, headers=[*fixed, *headers])
        self._parser.send(head)  # for its state; its writer knows 1.1 only
        lines = [b"%b %b HTTP/%b" % (method.encode(), path.encode(), version)]
        lines += [b"%b: %b" % pair for pair in [*fixed, *headers]]
        self.writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        for piece in _pieces(body) if chunked else [body]:
            self.writer.write(self._parser.send(h11.Data(data=piece)) or b"")
        self.writer.write(self._parser.send(h11.EndOfMessage()) or b"")
        await self.writer.drain()

    async def event(self) -> Any:
        """Return the parser's next event; `h11.NEED_DATA` is never returned.

        Raises:
            h11.RemoteProtocolError: what came is not HTTP, or was cut.
            TimeoutError: nothing came in time.
        """
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(PATIENCE_S):
                data = await self.reader.read(65536)
            self._parser.receive_data(data)
        return event

    async def reply(self) -> Reply:
        """Read one answer to its end, however it ends."""
        reply = Reply()
        body: list[bytes] = []
        try:
            while True:
                event = await self.event()
                if isinstance(event, h11.Response):
                    reply.status, reply.headers = event.status_code, [(bytes(k), bytes(v)) for k, v in event.headers]
                elif isinstance(event, h11.Data):
                    body.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    reply.whole = True
                    break
                elif isinstance(event, h11.ConnectionClosed):
                    reply.broken = "connection closed"
                    break
        except TimeoutError:
            reply.broken = f"silent for {PATIENCE_S:g} s"
        except (h11.RemoteProtocolError, OSError) as error:
            reply.broken = str(error) or type(error).__name__
        reply.body = b"".join(body)
        return reply

    async def until(self, text: bytes) -> None:
        """Read a stream until `text` has come.

        Raises:
            AssertionError: it did not.
        """
        seen = b""
        try:
            while text not in seen:
                event = await self.event()
                if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    raise AssertionError(f"the answer ended before {text!r}: {seen[-120:]!r}")
                seen += bytes(event.data) if isinstance(event, h11.Data) else b""
        except TimeoutError:
            raise AssertionError(f"{text!r} did not come within {PATIENCE_S:g} s; seen: {seen[-120:]!r}") from None

    def abort(self) -> None:
        """Leave with RST, as a client does that is killed."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def _pieces(body: bytes) -> list[bytes]:
    return [body[start : start + 1000] for start in range(0, len(body), 1000)]


async def ask(
    url: str, body: object, *headers: tuple[bytes, bytes], path: str = "/v1/chat/completions", **options: Any
) -> Reply:
    """Send one request on a connection of its own and read the whole answer; bytes go as they are, the rest as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        async with Wire(url) as wire:
            await wire.send(path, data, *headers, **options)
            return await wire.reply()
    except OSError as error:
        return Reply(broken=str(error))


async def raw(url: str, data: bytes, patience_s: float = 2.0) -> bytes:
    """Send bytes on a connection of their own; return all that comes until it ends or is silent for a while."""
    got = b""
    async with Wire(url) as wire:
        wire.writer.write(data)
        try:
            while True:
                async with asyncio.timeout(patience_s):
                    piece = await wire.reader.read(65536)
                if not piece:
                    break
                got += piece
        except (TimeoutError, OSError):
            pass
    return got
