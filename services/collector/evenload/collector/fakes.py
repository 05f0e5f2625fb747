"""A scripted engine for tests: answers with fixed bytes, hangs, or closes."""

import asyncio
import ssl
from typing import Self


class ScriptedServer:
    """Plays an engine on a free port.

    Attributes:
        answers: what a path gets, as raw bytes; None hangs.
        connections, requests, heads: those that came.
        close_after: whether the connection is closed after each answer without saying so.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.heads: list[bytes] = []
        self.answers: dict[str, bytes | None] = {}
        self.connections = 0
        self.requests: list[str] = []
        self.close_after = False
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Base address."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; on the same port again after `stop`."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and drop all connections, as a killed process does."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ")[1].decode()
                self.requests.append(path)
                self.heads.append(head)
                answer = self.answers.get(path, ok(b"", 404))
                if answer is None:
                    await reader.read()  # until the client gives up
                    return
                writer.write(answer)
                await writer.drain()
                if self.close_after:
                    return
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()


def ok(body: bytes, status: int = 200) -> bytes:
    """Bytes of an answer that keeps the connection."""
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
