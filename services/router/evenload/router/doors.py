"""Two doors to one router: clients at one port, operators at the other. Only with `router.admin_listen`."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]


class Doors:
    """ASGI callable that goes by the port at which a request arrived.

    Args:
        public: gets all other ports, and the server's lifespan.
        admin: gets the admin port.
        admin_port: of the listening socket.
        leaving: whether the router drains; then no connection of the admin port outlasts its answer, for the server
            waits for all.
    """

    def __init__(self, public: App, admin: App, admin_port: int, leaving: Callable[[], bool]) -> None:
        self._public = public
        self._admin = admin
        self._admin_port = admin_port
        self._leaving = leaving

    def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> Awaitable[None]:
        """Serve one scope."""
        server = scope.get("server")
        if server is None or server[1] != self._admin_port or scope["type"] == "lifespan":
            return self._public(scope, receive, send)
        return self._admin(scope, receive, _closing(send) if self._leaving() else send)


def _closing(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return sending
