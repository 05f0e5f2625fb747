"""`sglang-cache-aware`: SGLang router's cache-aware policy with its defaults.

- loads apart by more than 64 and more than 1.5 times: the least loaded;
- else, more than 30 % of the prompt cached somewhere: the longest match;
- else the instance with the smallest tree. Approximated: the least loaded, for the sizes of the trees are not in the
view.

Load is the requests in flight, own and others'. Ties at random.
"""

from collections.abc import Sequence

from evenload.routing.least import least
from evenload.routing.policy import Choice, InstanceView, Request, Rng

ABSOLUTE, RELATIVE, MATCHED = 64, 1.5, 0.3


class SglangCacheAware:
    """Longest match unless loads are apart."""

    name = "sglang-cache-aware"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the longest match or the least loaded."""
        loads = [float(view.in_flight + view.others_in_flight) for view in candidates]
        most, fewest = max(loads), min(loads)
        cached = [-float(view.cached_tokens) for view in candidates]
        apart = most - fewest > ABSOLUTE and most > RELATIVE * fewest
        if not apart and -min(cached) > MATCHED * max(1, request.prompt_tokens):
            return least(cached, rng, "longest-match")
        return least(loads, rng)
