"""The bytes of request bodies that one router holds: while they come, wait for a place, and are served.

A body has to be kept until its request is over, for another instance may have to get it. Gates count requests, and only
once a body has come; so this counts bytes from the head on. A body that came in one piece with its head is not counted:
it is at most what one read of a socket gives, and gates bound how many there are.

Bytes count as they come: a length that was only told takes nobody's room, but is refused at once if it does not fit.
What is counted is the body itself; while it is joined, renamed and sent there can be a copy of it.
"""

from .admission import Shed

RETRY_AFTER_S = 1  # nobody knows when others will be done


class HeldBodies:
    """The account of a router. For one event loop.

    Args:
        bytes_max: that may be held; not less than the largest body that is taken. May be replaced at any time.

    Attributes:
        bytes_max: as given.
        bytes_held: now.
        shed: requests refused.
    """

    __slots__ = ("bytes_held", "bytes_max", "shed")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.shed = 0

    def __repr__(self) -> str:
        return f"<HeldBodies {self.bytes_held} of {self.bytes_max}>"

    def hold(self) -> "HeldBody":
        """Return the account of one body; whoever has it must `release` it."""
        return HeldBody(self)


class HeldBody:
    """What is held of one body."""

    __slots__ = ("_all", "_bytes")

    def __init__(self, bodies: HeldBodies) -> None:
        self._all = bodies
        self._bytes = 0

    def fit(self, size: int) -> None:
        """See that a body of `size` bytes has room now.

        Raises:
            Shed: it has not.
        """
        bodies = self._all
        if bodies.bytes_held + size - self._bytes > bodies.bytes_max:
            bodies.shed += 1
            raise Shed("held_bytes", RETRY_AFTER_S)

    def reach(self, size: int) -> None:
        """Count the body as `size` bytes long, which it has grown to.

        Raises:
            Shed: there is no room; it counts as before.
        """
        self.fit(size)
        self._all.bytes_held += size - self._bytes
        self._bytes = size

    def release(self) -> None:
        """Count it no more."""
        self._all.bytes_held -= self._bytes
        self._bytes = 0
        assert self._all.bytes_held >= 0, "bytes were given back twice"
