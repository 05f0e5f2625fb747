"""One HTTP request with everything visible that faults can do to an answer: for tests and for looking by hand."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit


class Ending(StrEnum):
    """How the bytes of an answer ended."""

    COMPLETE = "complete"
    EOF = "eof"  # the connection was closed before the body was whole
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; `status` is 0 when none came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    ending: Ending

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


async def probe(base_url: str, method: str, target: str, body: bytes = b"", *, timeout_s: float = 20.0) -> Reply:
    """Send one request over a connection of its own and read until the server is done.

    Raises:
        OSError: The connection was refused.
        TimeoutError: No end within `timeout_s`.
    """
    url = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    head = (
        f"{method} {target} HTTP/1.1\r\nhost: {url.netloc}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    data, reset = b"", False
    try:
        async with asyncio.timeout(timeout_s):
            while piece := await reader.read(65536):
                data += piece
    except ConnectionResetError:
        reset = True
    finally:
        writer.close()
    return _reply(data, reset=reset)


async def until(condition: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """Wait for a condition that nothing announces.

    Raises:
        TimeoutError: It did not come to hold.
    """
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for knows nothing of events
            await asyncio.sleep(0.002)


def _reply(data: bytes, *, reset: bool) -> Reply:
    head, _, body = data.partition(b"\r\n\r\n")
    if not head:
        return Reply(0, [], b"", Ending.RESET if reset else Ending.EOF)
    lines = head.decode("latin-1").split("\r\n")
    headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines[1:])]
    fields = dict(headers)
    if fields.get("transfer-encoding") == "chunked":
        body, whole = _dechunk(body)
    else:
        whole = len(body) == int(fields.get("content-length", "0"))
    ending = Ending.COMPLETE if whole else Ending.RESET if reset else Ending.EOF
    return Reply(int(lines[0].split()[1]), headers, body, ending)


def _dechunk(data: bytes) -> tuple[bytes, bool]:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return body, True
        body += data[:length]
        data = data[length + 2 :]
    return body, False
