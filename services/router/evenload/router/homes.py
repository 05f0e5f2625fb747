"""Which prompts are to go home, that is, to be weighed by `affinity.py`. One per pool; the time of a call is bounded.

To take 60 % of a prompt for cached where it is not costs the even spread (docs/policies.md has figures), so a prompt
goes home only where there is evidence that it will be found there, and not with a crowd:

    home  <=>  engines say that they find prompts in their caches, or the settings do
          and  it begins like one seen before, or `repeated` >= REPEATED_MIN
          and  under way that begin alike <= 1 + all under way / instances

`repeated` is an EWMA by request of the share that had been seen before. Where conversations are usual, their first
prompt goes home as well, so that the second finds it there, through whatever router it comes. The bound is that of
consistent hashing with bounded loads (Mirrokni et al. 2018), for each beginning by itself: what everybody asks is soon
cached everywhere, and shall not be decoded in one place.

What it does not handle: other routers' requests (where R of them take turns, each sees an R-th of the second requests
as such), and time: what was seen is forgotten by number, not by age.
"""

from collections.abc import Iterable

from evenload.router.beginnings import Beginnings
from evenload.routing import InstanceView

SEEN_MAX = 4096  # beginnings that are remembered, least recently used first out: 0.5 MB
REPEATED_WEIGHT = 0.02
REPEATED_MIN = 0.2


class Homes:
    """What one router has seen of one pool's beginnings.

    Args:
        beginnings: hashes them.
        instances: of the pool; may be changed.
        certain: do not ask whether engines find prompts in their caches; may be changed.

    Attributes:
        repeated: share of requests whose beginning had been seen before, smoothed.
        under_way: attempts with a beginning that have not ended.
        outcomes: requests with a beginning by what became of it.
    """

    __slots__ = ("_alike", "_seen", "beginnings", "certain", "instances", "outcomes", "repeated", "under_way")

    def __init__(self, beginnings: Beginnings, instances: int, *, certain: bool = False) -> None:
        self.beginnings = beginnings
        self.instances = instances
        self.certain = certain
        self.repeated = 0.0
        self.under_way = 0
        self.outcomes = dict.fromkeys(("home", "unknown", "crowded", "no_cache_hits"), 0)
        self._seen: dict[int, None] = {}
        self._alike: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"Homes({len(self._seen)} seen, repeated={self.repeated:.3f}, under_way={self.under_way})"

    def prefix_for(self, beginning: int, views: Iterable[InstanceView]) -> int:
        """Note a new request; returns its beginning if it is to go home, else 0.

        Args:
            beginning: of its prompt, 0 for none.
            views: the pool's instances.
        """
        if not beginning:
            return 0
        why = "home"
        if not self._comes_back(beginning):
            why = "unknown"
        elif self._crowded(beginning):
            why = "crowded"
        elif not self._finds(views):
            why = "no_cache_hits"
        self.outcomes[why] += 1
        return beginning if why == "home" else 0

    def _comes_back(self, beginning: int) -> bool:
        before = beginning in self._seen
        if before:
            del self._seen[beginning]
        elif len(self._seen) >= SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[beginning] = None
        self.repeated += REPEATED_WEIGHT * (before - self.repeated)
        return before or self.repeated >= REPEATED_MIN

    def _crowded(self, beginning: int) -> bool:
        return (self._alike.get(beginning, 0) - 1) * self.instances > self.under_way

    def _finds(self, views: Iterable[InstanceView]) -> bool:
        """Tell whether prompts are found in caches: 0 where those are off, None where nobody says."""
        return self.certain or any(view.state.prefix_hits for view in views)

    def began(self, beginning: int) -> None:
        """Count an attempt; `ended` has to follow once."""
        self.under_way += 1
        self._alike[beginning] = self._alike.get(beginning, 0) + 1

    def ended(self, beginning: int) -> None:
        """Count the end of an attempt."""
        self.under_way -= 1
        left = self._alike[beginning] - 1
        if left:
            self._alike[beginning] = left
        else:
            del self._alike[beginning]
