"""What a server may offer beyond ASGI: the client's connection itself, under `EXTENSION` in the scope's extensions.

With it the end of the client needs no task that waits for a message, and a part of the body no coroutine. Where a
server offers none (uvicorn's own protocols), ASGI's `receive` and `send` do the same at a higher price.
"""

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, Protocol

EXTENSION = "evenload.wire"


class Source(Protocol):
    """Who pushes; told when the client does not read."""

    def pause(self) -> None:
        """Push nothing more for now."""

    def resume(self) -> None:
        """Push again."""


class Wire(Protocol):
    """One response on a client's connection.

    Attributes:
        on_gone: called once when the client leaves before the response is complete.
        source: who pushes, while somebody does.
    """

    on_gone: Callable[[], None] | None
    source: Source | None

    @property
    def gone(self) -> bool:
        """Whether nobody can be answered any more."""

    def whole_body(self) -> bytes | None:
        """Take what `receive` has not returned of the request's body; None if more is to come."""

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole response; there is none yet."""

    def push(self, data: bytes) -> None:
        """Write a part of the body of a response that has been started; who does it sets `source`."""


def wire_of(scope: MutableMapping[str, Any]) -> Wire | None:
    """Return the client's connection, where the server offers it."""
    extensions = scope.get("extensions")
    return extensions.get(EXTENSION) if extensions else None
