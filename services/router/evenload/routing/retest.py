"""Re-testing who gets no requests: rarely, one at a time, and more readily the longer nothing was heard.

An instance is due when nothing is known to await its first token there, of this router or of others, and its last
evidence is `after_ms` old. While one is due, a choice goes to the one that was silent for longest with probability

    share * min(growth, s * (1 + steep * (s - 1)))          s = silence / after_ms

A slow answer so delays the next question by itself (3.5 s at 3500 ms), which is the back-off; and the share bounds what
re-testing can harm at low rates, where time alone would ask too often. It grows to 3 % of choices in 5 s of silence: at
9 requests a second, 0.75 % left a healed instance alone for 28 s once.

At `steep` 1 the probability grows with the square of the silence: as many questions at 100 requests a second, but more
evenly spaced. A healed instance needs two good answers as a rule, and one lifts the more slowness the longer the
silence was before it; by chance alone some waited for 20 s.
"""

from collections.abc import Sequence
from typing import NamedTuple

from evenload.routing.policy import InstanceView

SHARE = 0.003
AFTER_MS = 1_500
GROWTH = 10.0
STEEP = 1.0


class Due(NamedTuple):
    """Who is to be re-tested, and with what probability."""

    candidate: int
    probability: float


def due(
    candidates: Sequence[InstanceView],
    now_ms: int,
    share: float = SHARE,
    after_ms: int = AFTER_MS,
    growth: float = GROWTH,
    *,
    steep: float = STEEP,
) -> Due | None:
    """Return the candidate silent for longest, the first of equals, or None if nobody is due."""
    found, oldest_ms = -1, now_ms - after_ms
    for index, view in enumerate(candidates):
        at_ms = view.state.slow_at_ms
        if at_ms <= oldest_ms and not view.awaiting and not view.others_awaiting:
            found, oldest_ms = index, at_ms - 1
    if found < 0:
        return None
    times = (now_ms - candidates[found].state.slow_at_ms) / after_ms
    times *= 1.0 + steep * (times - 1.0)
    return Due(found, share * (times if times < growth else growth))
