"""A stream on its way from an engine's connection to a client's, without a task that wakes for each chunk.

`take` is called from the engine's `data_received` and writes to the client at once. When the client does not read, its
connection says `pause`, and the engine's socket is not read until `resume`: so what waits here is bounded by what the
two transports hold, and the engine feels it. Nothing is waited for from the engine meanwhile.
"""

from .client import Client
from .patience import Patience
from .sse import SseObserver
from .upstream import Response


class Relay:
    """One stream.

    Args:
        response: where it comes from.
        client: where it goes to; has a wire.
        observer: sees all of it.
        patience: with the engine.
    """

    __slots__ = ("_client", "_feed", "_look", "_patience", "_push", "_response")

    def __init__(self, response: Response, client: Client, observer: SseObserver, patience: Patience) -> None:
        self._response = response
        self._client = client
        self._push = client.pusher()
        self._feed = observer.feed
        self._patience = patience
        self._look = patience.look

    async def run(self) -> None:
        """Return at the end of the stream.

        Raises:
            UpstreamError: it did not end as it should.
        """
        wire = self._client.wire
        assert wire is not None
        wire.source = self
        try:
            self._patience.wait()
            await self._response.pipe(self.take)
        finally:
            wire.source = None

    def take(self, data: bytes) -> None:
        """Pass on what came."""
        self._feed(data)
        self._look()
        self._push(data)

    def pause(self) -> None:
        """The client does not read."""
        self._patience.rest()
        self._response.pause()

    def resume(self) -> None:
        """It reads again."""
        self._patience.wait()
        self._response.resume()
