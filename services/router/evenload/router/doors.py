"""Two doors to one router: clients at one port, operators at the other. Only with `router.admin_listen`."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]


class Doors:
    """ASGI callable that goes by the port at which a request arrived.

    Args:
        public: gets all other ports, and the server's lifespan.
        admin: gets the admin port.
        admin_port: of the listening socket.
    """

    def __init__(self, public: App, admin: App, admin_port: int) -> None:
        self._public = public
        self._admin = admin
        self._admin_port = admin_port

    def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> Awaitable[None]:
        """Serve one scope."""
        server = scope.get("server")
        at_admin = server is not None and server[1] == self._admin_port and scope["type"] != "lifespan"
        return (self._admin if at_admin else self._public)(scope, receive, send)
