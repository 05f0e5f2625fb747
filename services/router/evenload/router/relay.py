"""A stream on its way from an engine's connection to a client's, without a task that wakes for each chunk.

`take` is called from the engine's `data_received` and writes to the client at once. When the client does not read, its
connection says `pause`, and the engine's socket is not read until `resume`: so what waits here is bounded by what the
two transports hold, and the engine feels it. Nothing is waited for from the engine meanwhile.
"""

from collections.abc import Callable

from .client import Client
from .sse import SseObserver
from .upstream import Response
from .watch import Watch


class Relay:
    """One stream.

    Args:
        response: where it comes from.
        client: where it goes to; has a wire.
        observer: sees all of it.
        watch: whose deadline for the next byte moves.
        idle_s: between bytes.
        on_content: called after the first content, if that has not been seen yet; None else.
    """

    __slots__ = ("_client", "_feed", "_idle_s", "_observer", "_on_content", "_paused", "_push", "_response", "_watch")

    def __init__(
        self,
        response: Response,
        client: Client,
        observer: SseObserver,
        watch: Watch,
        *,
        idle_s: float,
        on_content: Callable[[], None] | None,
    ) -> None:
        self._response = response
        self._client = client
        self._push = client.pusher()
        self._observer = observer
        self._feed = observer.feed
        self._watch = watch
        self._idle_s = idle_s
        self._paused = False
        self._on_content = on_content  # until then the limit of the first token goes on

    async def run(self) -> None:
        """Return at the end of the stream.

        Raises:
            UpstreamError: it did not end as it should.
        """
        wire = self._client.wire
        assert wire is not None
        wire.source = self
        try:
            if self._on_content is None:
                self._watch.limit(self._idle_s, "idle")
            await self._response.pipe(self.take)
        finally:
            wire.source = None

    def take(self, data: bytes) -> None:
        """Pass on what came."""
        self._feed(data)
        if self._on_content is not None and self._observer.content_started:
            self._on_content()
            self._on_content = None
        if self._on_content is None and not self._paused:  # what was read before the pause may come after it
            self._watch.limit(self._idle_s, "idle")
        self._push(data)

    def pause(self) -> None:
        """The client does not read."""
        self._paused = True
        if self._on_content is None:
            self._watch.unlimit()
        self._response.pause()

    def resume(self) -> None:
        """It reads again."""
        self._paused = False
        if self._on_content is None:
            self._watch.limit(self._idle_s, "idle")
        self._response.resume()
