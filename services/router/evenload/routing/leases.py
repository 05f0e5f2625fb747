"""Own load: a lease per attempt, booked in the same synchronous step as the choice and released exactly once.

`in-flight` lasts until the last byte, `awaiting` until the first token; what the prefix cache probably holds awaits
nothing. Times are the router's monotonic milliseconds.
"""

import heapq

from evenload.routing.backlog import UNEXPECTED, Expected
from evenload.schemas import RouterLoad

OVERDUE_FIRST_MS = 250.0
CHANGE_SHARE = 0.2
REPORT_EVERY_MS = 1_000.0


class Counts:
    """Own requests at one instance, and what was reported of them last."""

    __slots__ = ("awaiting", "awaiting_tokens", "in_flight", "in_flight_tokens", "reported", "reported_at_ms")

    def __init__(self) -> None:
        self.in_flight = self.awaiting = self.in_flight_tokens = self.awaiting_tokens = 0
        self.reported = (0, 0, 0, 0)
        self.reported_at_ms = 0.0

    def __repr__(self) -> str:
        return f"Counts(in_flight={self.in_flight}, awaiting={self.awaiting})"

    def values(self) -> tuple[int, int, int, int]:
        """Return in-flight, awaiting, and the prompt tokens of both."""
        return self.in_flight, self.awaiting, self.in_flight_tokens, self.awaiting_tokens


class Lease:
    """One attempt's place at an instance."""

    __slots__ = (
        "_awaiting_tokens",
        "_counts",
        "_held_tokens",
        "awaiting",
        "expected",
        "generation",
        "held",
        "instance",
        "prompt_tokens",
        "started_ms",
    )

    def __init__(
        self, instance: str, counts: Counts, prompt_tokens: int, started_ms: float, expected: Expected = UNEXPECTED
    ) -> None:
        self.expected = expected
        self.instance = instance
        self.prompt_tokens = prompt_tokens
        self.started_ms = started_ms
        self._counts = counts
        self.generation = 0  # of the instance; what becomes of the request is told of this one, not of a later one
        self.held = self.awaiting = True
        counts.in_flight += 1
        counts.awaiting += 1
        self._held_tokens = prompt_tokens
        counts.in_flight_tokens += prompt_tokens
        self._awaiting_tokens = max(0, prompt_tokens - expected.cached_tokens)
        counts.awaiting_tokens += self._awaiting_tokens

    def __repr__(self) -> str:
        return f"Lease({self.instance}, held={self.held}, awaiting={self.awaiting})"

    def first_token(self) -> bool:
        """Note the first token; return False if that was noted before or the lease is released."""
        if not self.awaiting:
            return False
        self.awaiting = False
        self._counts.awaiting -= 1
        self._counts.awaiting_tokens -= self._awaiting_tokens
        return True

    def linger(self) -> None:
        """Keep the place, and nothing else: the prompt is gone."""
        self.first_token()
        if self.held:
            self._counts.in_flight_tokens -= self._held_tokens
            self._held_tokens = 0

    def release(self) -> bool:
        """Give the place back; return False if it was given back before."""
        if not self.held:
            return False
        self.first_token()
        self.held = False
        self._counts.in_flight -= 1
        self._counts.in_flight_tokens -= self._held_tokens
        assert self._counts.in_flight >= 0, "a lease was released twice"
        return True


class LeaseBook:
    """All leases of one router."""

    def __init__(self) -> None:
        self._counts: dict[str, Counts] = {}
        self._waiting: list[tuple[float, int, float, Lease]] = []  # heap: due, number, age at due, lease
        self._number = 0

    def counts(self, instance: str) -> Counts:
        """Return the own load at an instance."""
        found = self._counts.get(instance)
        if found is None:
            found = self._counts[instance] = Counts()
        return found

    def book(self, instance: str, prompt_tokens: int, now_ms: float, expected: Expected = UNEXPECTED) -> Lease:
        """Take a place at an instance."""
        lease = Lease(instance, self.counts(instance), prompt_tokens, now_ms, expected)
        self._number += 1
        heapq.heappush(self._waiting, (now_ms + OVERDUE_FIRST_MS, self._number, OVERDUE_FIRST_MS, lease))
        return lease

    def overdue(self, now_ms: float) -> list[tuple[Lease, float]]:
        """Return the leases that still await their first token, with their age, at 250 ms and at each doubling."""
        late: list[tuple[Lease, float]] = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            _, number, threshold_ms, lease = heapq.heappop(self._waiting)
            if not lease.awaiting:
                continue
            age_ms = now_ms - lease.started_ms
            late.append((lease, age_ms))
            while threshold_ms <= age_ms:
                threshold_ms *= 2.0
            heapq.heappush(self._waiting, (lease.started_ms + threshold_ms, number, threshold_ms, lease))
        return late

    def reports(self, now_ms: float) -> list[RouterLoad]:
        """Return the loads worth telling: changed by a fifth, or not told for a second while not zero."""
        told: list[RouterLoad] = []
        for instance, counts in self._counts.items():
            values = counts.values()
            if values == counts.reported and (now_ms - counts.reported_at_ms < REPORT_EVERY_MS or not any(values)):
                continue
            stale = any(values) and now_ms - counts.reported_at_ms >= REPORT_EVERY_MS
            if stale or _changed(values, counts.reported):
                counts.reported, counts.reported_at_ms = values, now_ms
                told.append(
                    RouterLoad(
                        instance=instance,
                        in_flight=values[0],
                        awaiting=values[1],
                        in_flight_tokens=values[2],
                        awaiting_tokens=values[3],
                    )
                )
        return told

    def forget(self, instance: str) -> bool:
        """Drop an instance that gets no more requests; False while it has some, or has not been reported empty."""
        counts = self._counts.get(instance)
        if counts is not None and (any(counts.values()) or any(counts.reported)):
            return False
        self._counts.pop(instance, None)
        return True

    @property
    def in_flight(self) -> int:
        """All own requests under way."""
        result = 0
        for counts in self._counts.values():
            result += counts.in_flight
        return result


def _changed(values: tuple[int, int, int, int], before: tuple[int, int, int, int]) -> bool:
    for value, old in zip(values, before, strict=True):
        if value != old and (value - old if value > old else old - value) >= CHANGE_SHARE * old:
            return True
    return False
