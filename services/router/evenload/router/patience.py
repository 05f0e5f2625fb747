"""How long the next bytes of a stream that is being passed on are waited for.

| so far                               | limit                                                                |
|--------------------------------------|----------------------------------------------------------------------|
| no content, error or finish          | what is left of the first token's, from when the request was sent    |
| one of them                          | `idle_s` from the last bytes                                         |
| a whole answer and the API's own end | `LAST_CHUNK_S`; with its last chunk the connection can be used again |

While the client does not read, nothing is waited for.
"""

from collections.abc import Callable

from .sse import SseObserver
from .watch import Watch

LAST_CHUNK_S = 1.0  # engines write it right behind the end


class Patience:
    """Of one stream, whose limit of the first token runs already.

    Args:
        observer: has seen all that came.
        watch: of the request's task.
        idle_s: between bytes.
        on_content: called when the first content has been seen.
    """

    __slots__ = ("_idle_s", "_limit", "_observer", "_on_content", "_resting", "_settled", "_watch")

    def __init__(self, observer: SseObserver, watch: Watch, *, idle_s: float, on_content: Callable[[], None]) -> None:
        self._observer = observer
        self._watch = watch
        self._limit = watch.limit
        self._idle_s = idle_s
        self._on_content: Callable[[], None] | None = on_content
        self._settled = False
        self._resting = False

    def look(self) -> None:
        """The observer has seen more."""
        observer = self._observer
        if self._on_content is not None:
            if observer.content_started:
                self._on_content()
                self._on_content = None
                self._settled = True
            elif observer.error is not None or observer.finished:
                self._settled = True
        if observer.done and observer.ended:
            self._idle_s = min(self._idle_s, LAST_CHUNK_S)
        if self._settled and not self._resting:  # what was read before a rest may come after it has begun
            self._limit(self._idle_s, "idle")

    def wait(self) -> None:
        """From now on the next bytes are waited for."""
        self._resting = False
        if self._settled:
            self._limit(self._idle_s, "idle")
        else:
            self._watch.go_on()

    def rest(self) -> None:
        """They are not: the client has to read first."""
        self._resting = True
        if self._settled:
            self._watch.unlimit()
        else:
            self._watch.suspend()
