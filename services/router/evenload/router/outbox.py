"""Decision records between choice and Kafka's client: made and encoded some at a time, while no request waits for it.

What a record is made of is whole when it comes and does not change, so a request is sent on before the record is made.
The ticker flushes every 50 ms, and a full outbox flushes itself.
"""

from collections.abc import Callable
from typing import Protocol

from evenload.schemas import Decision, encode

WAITING_MAX = 64


class Recorded(Protocol):
    """What a record is made of."""

    def record(self) -> Decision:
        """Make it."""


class Outbox:
    """Records that are not made yet.

    Args:
        send: takes (key, encoded decision); bounded, never blocks, never raises.
    """

    __slots__ = ("_send", "_waiting")

    def __init__(self, send: Callable[[bytes, bytes], object]) -> None:
        self._send = send
        self._waiting: list[Recorded] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, decided: Recorded) -> None:
        """Take what a record is made of."""
        self._waiting.append(decided)
        if len(self._waiting) >= WAITING_MAX:
            self.flush()

    def flush(self) -> None:
        """Make, encode and hand on what waits, in order."""
        for decided in self._waiting:
            decision = decided.record()
            self._send(decision.request_id.encode(), encode(decision))
        self._waiting.clear()
