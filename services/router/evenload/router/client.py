"""The client's side of one exchange: what has been sent to it decides what may still be done."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from evenload.api.errors import ApiError, Form

from .headers import Headers
from .model_name import NameRewriter
from .wire import Wire

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Client:
    """Sends one response.

    Args:
        send: of ASGI.
        request_id: goes into the response's headers.
        closing: the connection is to end after the response.
        form: of errors, as the client's API has it.
        wire: the connection itself, where the server offers it.
        names_instance: an instance's answer says whose it is.

    Attributes:
        request_id, form: as given.
        model_name: rewrites the model's name in what is sent; None leaves it as the upstream gave it.
        started: whether the response's head has been sent; then no other instance can answer any more.
    """

    __slots__ = ("_closing", "_names_instance", "_send", "form", "model_name", "request_id", "started", "wire")

    def __init__(
        self,
        send: Send,
        request_id: bytes,
        *,
        closing: bool = False,
        form: Form = "openai",
        wire: Wire | None = None,
        names_instance: bool = True,
    ) -> None:
        self._closing = closing
        self._names_instance = names_instance
        self.form: Form = form
        self._send = send
        self.wire = wire
        self.request_id = request_id
        self.model_name: NameRewriter | None = None
        self.started = False

    async def start(self, status: int, headers: Headers, instance: str | None) -> None:
        """Send the head."""
        await self._send({"type": "http.response.start", "status": status, "headers": self._head(headers, instance)})

    def _head(self, headers: Headers, instance: str | None) -> Headers:
        self.started = True
        if self.model_name is not None:
            headers = self._renamed(headers)
        headers.append((b"x-request-id", self.request_id))
        if self.form == "anthropic":
            headers.append((b"request-id", self.request_id))  # where its clients look
        if self._closing:
            headers.append((b"connection", b"close"))
        if self._names_instance and instance is not None:
            headers.append((b"x-evenload-instance", instance.encode("utf-8")))
        return headers

    async def write(self, data: bytes) -> None:
        """Send a part of the body; waits while the client does not read."""
        if self.model_name is not None:
            data = self.model_name.feed(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def pusher(self) -> Callable[[bytes], None]:
        """Return what writes a part of the body at once, on a wire; its caller obeys the wire's back-pressure."""
        assert self.wire is not None
        return self.wire.push if self.model_name is None else self._push_renamed

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        if self.model_name is not None:
            data = self.model_name.feed(data) + self.model_name.close()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, headers: Headers, body: bytes, instance: str | None = None) -> None:
        """Send a whole response."""
        if self.wire is not None:
            headers = self._head(headers, instance)
            return self.wire.respond(status, headers, self._renamed_whole(status, body))
        await self.start(status, headers, instance)
        body, self.model_name = self._renamed_whole(status, body), None
        return await self.end(body)

    def _renamed_whole(self, status: int, body: bytes) -> bytes:
        if self.model_name is None:
            return body
        return self.model_name.error(body) if status >= 400 else self.model_name.feed(body) + self.model_name.close()

    async def refuse(self, error: ApiError) -> None:
        """Send an error of Evenload's own: whoever was asked, it is no instance's answer."""
        body = error.body(self.request_id, self.form)
        await self.answer(error.status, error.headers(body), body)

    def _push_renamed(self, data: bytes) -> None:
        assert self.wire is not None
        assert self.model_name is not None
        if data := self.model_name.feed(data):
            self.wire.push(data)

    def _renamed(self, headers: Headers) -> Headers:
        """Drop the length, which may change; what is compressed cannot be rewritten."""
        if any(name == b"content-encoding" and value.lower() != b"identity" for name, value in headers):
            self.model_name = None
            return headers
        return [(name, value) for name, value in headers if name != b"content-length"]
