"""`dynamo`: NVIDIA Dynamo's KV router: prefill blocks to compute plus active decode blocks, the least of all.

    cost = 1.0 * (uncached prompt + prompts awaiting first token) / 16 + prompt tokens in flight / 16

Approximated: blocks are counted from prompt tokens of own and others' requests (generated tokens are unknown), awaiting
prompts in full; what is cached comes from the router's own index, not from the engines' KV events. Temperature 0.
"""

from collections.abc import Sequence

from evenload.routing.least import least
from evenload.routing.policy import Choice, InstanceView, Request, Rng

OVERLAP_WEIGHT = 1.0
BLOCK_TOKENS = 16


class Dynamo:
    """Minimum of prefill and decode blocks."""

    name = "dynamo"

    def choose(self, candidates: Sequence[InstanceView], request: Request, now_ms: int, rng: Rng) -> Choice:
        """Return the cheapest."""
        return least([_cost(view, request) for view in candidates], rng)


def _cost(view: InstanceView, request: Request) -> float:
    fresh = max(0, request.prompt_tokens - view.cached_tokens)
    prefill = fresh + view.awaiting_tokens + view.others_awaiting_tokens
    decode = request.prompt_tokens + view.in_flight_tokens + view.others_in_flight_tokens
    return (OVERLAP_WEIGHT * prefill + decode) / BLOCK_TOKENS
