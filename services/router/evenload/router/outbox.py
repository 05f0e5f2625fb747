"""Decision records between choice and Kafka's client: encoded some at a time, while no request waits for it.

A record is whole when it comes and does not change; what is left for later is only its bytes, so a request is sent on
before they are made. The ticker flushes every 50 ms, and a full outbox flushes itself.
"""

from collections.abc import Callable

from evenload.schemas import Decision, encode

WAITING_MAX = 64


class Outbox:
    """Records that are not encoded yet.

    Args:
        send: takes (key, encoded decision); bounded, never blocks, never raises.
    """

    __slots__ = ("_send", "_waiting")

    def __init__(self, send: Callable[[bytes, bytes], object]) -> None:
        self._send = send
        self._waiting: list[Decision] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, decision: Decision) -> None:
        """Take a record."""
        self._waiting.append(decision)
        if len(self._waiting) >= WAITING_MAX:
            self.flush()

    def flush(self) -> None:
        """Encode and hand on what waits, in order."""
        for decision in self._waiting:
            self._send(decision.request_id.encode(), encode(decision))
        self._waiting.clear()
