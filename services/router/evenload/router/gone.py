"""Requests that wait for an instance that is gone.

A server that stops closes its port first. A vLLM that stops may then hold its connections open, without a word, until
the clients leave: it takes no requests and finishes none (docs/real-engines.md). So where the collector says that the
port refuses connections, an answer that has begun and is silent for `LOOKS` looks is given up, and one that has not
begun after `LOOKS_UNBEGUN`. Before content another instance makes it good; after it the client is told.

The second limit is longer because servers that drain in order close their port first, too, and finish what they have:
streams go on, but an answer that is no stream is silent until it is whole. Not handled: silence of an instance whose
port is open. An engine that reads a long prompt is silent as well, so there the pool's own timeouts hold.
"""

from collections.abc import Callable, Mapping

from .upstream import Upstream

LOOK_MS = 1_000.0
LOOKS = 3  # seconds, and a little more
LOOKS_UNBEGUN = 30
CAUSE = "gone"


class Gone:
    """Looks once a second.

    Args:
        look_ms: between two looks.

    Attributes:
        given_up: requests, so far.
    """

    def __init__(self, look_ms: float = LOOK_MS) -> None:
        self.given_up = 0
        self._look_ms = look_ms
        self._next_ms = 0.0

    def look(self, mono_ms: float, upstreams: Mapping[str, Upstream], refuses: Callable[[str], bool]) -> None:
        """Give up what is silent at instances that refuse connections.

        Args:
            mono_ms: monotonic milliseconds; may come as often as one likes.
            upstreams: by instance.
            refuses: tells whether an instance refuses connections; asked only of those where something is silent.
        """
        if mono_ms < self._next_ms:
            return
        self._next_ms = mono_ms + self._look_ms
        for name, upstream in upstreams.items():
            silent = upstream.silent(LOOKS, LOOKS_UNBEGUN)
            if silent and refuses(name):
                self.given_up += len(silent)
                for connection in silent:
                    connection.give_up(CAUSE)
