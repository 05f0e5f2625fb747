"""The constants of `predictive`: what each is for, and its bounds. The formulas are in `predictive_cost.py`."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from evenload.routing.retest import AFTER_MS, GROWTH, SHARE, STEEP

Share = Annotated[float, Meta(ge=0, le=1)]
Factor = Annotated[float, Meta(ge=0, le=1e6)]


class Constants(Struct, frozen=True, kw_only=True):
    """Constants of `predictive`; zero switches a term off. Figures: docs/policies.md.

    Attributes:
        awaiting: of base, per request awaiting: 5 % lets a stuck provider have one or two more than the others.
        load, load_square: evenness of decoders; less, and TPOT suffers; more, and TTFT does.
        even_share: own share of all in flight up to which evenness is left to chance; twice that counts in full.
        strangers: how much a replica keeps to itself; at 8 it spills over to others' instances too late.
        harm_strangers, long_tokens: where long prompts go; without, 1 to 2 % of short ones wait seconds.
        long_usual: among prompts of the usual size p, `long_tokens` is at least long_usual * p.
        home: share of a prompt that is taken for cached where its beginning belongs (`affinity.py`).
        base_spread, token_spread: relative difference from the median that is believed by half.
        few_samples: weight of samples of which half is believed; an instance that gets few requests, and those long
            ones, else learns a base that keeps the others away.
        base_excess, token_least: the most that base, the least that token may be, in medians: an overloaded engine can
            teach a steep base and a flat token cost, and a token cost of nothing draws every long prompt.
        fail_ms: about the SLO: a retry costs that.
        cooling: by how much more an instance costs that refused with 429 or 503, while it cools.
        slow_from: slowness that is still noise: TTFT of a healthy provider reaches 1.3 in the mean.
        kv, queue_ms, kv_most: at a full KV cache, what the cost is multiplied by, less one, and what each request in
            the engine's queue adds; both rise from 80 % on and up to `kv_most` caches' worth of tokens. A queue in
            front of a free cache is gone before it is told of; one that counts for more hides how much is held.
        slow_full: how much of its slowness a full cache explains; a switch.
        ahead: how much of what gauges do not show yet counts; at 0, k is of the gauge alone.
        content_age: whether words are as old as the oldest own event that a snapshot does not include (else as old as
            the snapshot); a switch.
        tie: relative difference in cost that does not matter.
        tie_crowded: by how much that grows where a replica's own traffic is next to nothing (`tie_width`).
        retest_share, retest_after_ms, retest_growth, retest_steep: see `retest.py`.
    """

    awaiting: Factor = 0.05
    load: Factor = 1.5
    load_square: Factor = 1.5
    even_share: Share = 0.1
    strangers: Factor = 5.0
    harm_strangers: Factor = 24.0
    long_tokens: Annotated[float, Meta(gt=0, le=1e6)] = 8_000.0
    long_usual: Factor = 2.0
    home: Share = 0.6
    base_spread: Factor = 0.4
    token_spread: Factor = 0.35
    few_samples: Factor = 30.0
    base_excess: Factor = 2.0
    token_least: Share = 0.25
    fail_ms: Factor = 1_000.0
    cooling: Factor = 4.0
    slow_from: Factor = 1.5
    kv: Factor = 6.0
    queue_ms: Factor = 100.0
    kv_most: Annotated[float, Meta(ge=1, le=1e6)] = 4.0
    slow_full: Share = 1.0
    ahead: Factor = 1.0
    content_age: Share = 1.0
    tie: Share = 0.02
    tie_crowded: Factor = 2.4
    retest_share: Share = SHARE
    retest_after_ms: Annotated[int, Meta(ge=1)] = AFTER_MS
    retest_growth: Factor = GROWTH
    retest_steep: Share = STEEP

    def __post_init__(self) -> None:
        """Refuse what is out of bounds.

        Raises:
            ValueError: names the constant.
        """
        for one in msgspec.structs.fields(self):
            try:
                msgspec.convert(getattr(self, one.name), one.type)
            except msgspec.ValidationError as error:
                raise ValueError(f"{one.name} is {getattr(self, one.name)!r}: {error}") from error
