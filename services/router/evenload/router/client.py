"""The client's side of one exchange: what has been sent to it decides what may still be done."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .headers import Headers

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Client:
    """Sends one response.

    Args:
        send: of ASGI.
        request_id: goes into the response's headers.

    Attributes:
        started: whether the response's head has been sent; then no other instance can answer any more.
    """

    __slots__ = ("_request_id", "_send", "started")

    def __init__(self, send: Send, request_id: bytes) -> None:
        self._send = send
        self._request_id = request_id
        self.started = False

    async def start(self, status: int, headers: Headers, instance: str | None) -> None:
        """Send the head."""
        self.started = True
        headers.append((b"x-request-id", self._request_id))
        if instance is not None:
            headers.append((b"x-evenload-instance", instance.encode("utf-8")))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send a part of the body; waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, headers: Headers, body: bytes, instance: str | None = None) -> None:
        """Send a whole response."""
        await self.start(status, headers, instance)
        await self.end(body)
