"""A few read-only pages for operators and Prometheus: GET, one answer, closed."""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

_REQUEST_S = 5.0
_LINES_MAX = 100


class Reply(NamedTuple):
    """Status, content type and body of a page."""

    status: int
    content_type: str
    body: bytes


class ProbeServer:
    """Serves pages by path."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Reply]]) -> None:
        """Take the address, the port (0 takes a free one) and what makes each page."""
        self.host = host
        self.port = port
        self._pages = pages
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port cannot be had.
        """
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                reply = self._answer(await _request_line(reader))
                head = (
                    f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, '')}\r\n"
                    f"Content-Type: {reply.content_type}\r\n"
                    f"Content-Length: {len(reply.body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode("ascii") + reply.body)
                await writer.drain()
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            pass  # whoever asked has gone or does not speak HTTP
        finally:
            writer.close()

    def _answer(self, line: str) -> Reply:
        method, _, rest = line.partition(" ")
        if method not in ("GET", "HEAD"):
            return Reply(405, "text/plain", b"only GET\n")
        page = self._pages.get(rest.split(" ")[0].split("?")[0])
        if page is None:
            return Reply(404, "text/plain", ("pages: " + " ".join(self._pages) + "\n").encode())
        return page()


_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


async def _request_line(reader: asyncio.StreamReader) -> str:
    line = (await reader.readline()).decode("ascii").strip()
    for _ in range(_LINES_MAX):
        if not (await reader.readline()).strip():
            break
    return line
