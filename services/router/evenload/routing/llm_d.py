"""`llm-d`: the weighted scorers of llm-d's scheduler (Gateway API inference extension), best total, ties at random.

    queue   (longest - waiting) / (longest - shortest), 1 if all are equal     weight 2
    kv      1 - KV usage                                                       weight 2
    prefix  share of the prompt that is probably cached there                  weight 3

All but the prefix come from polled gauges, as there; unknown gauges count as 0. Nothing between two polls is known, so
that requests herd onto whoever looked idle.
"""

from collections.abc import Sequence

from evenload.routing.least import least
from evenload.routing.policy import Choice, InstanceView, Request, Rng

QUEUE_WEIGHT, KV_WEIGHT, PREFIX_WEIGHT = 2.0, 2.0, 3.0


class LlmD:
    """The highest weighted score."""

    name = "llm-d"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the best scored."""
        waiting = [float(view.state.waiting or 0) for view in candidates]
        longest, shortest = max(waiting), min(waiting)
        spread = longest - shortest
        prompt = max(1, request.prompt_tokens)
        costs = [
            -(
                QUEUE_WEIGHT * ((longest - own) / spread if spread else 1.0)
                + KV_WEIGHT * (1.0 - (view.state.kv_usage or 0.0))
                + PREFIX_WEIGHT * (view.cached_tokens / prompt)
            )
            for view, own in zip(candidates, waiting, strict=True)
        ]
        return least(costs, rng, "best-score")
