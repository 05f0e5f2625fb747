"""What a request costs at each candidate: predicted TTFT, plus what it does to others, times what speaks against it.

With work x before it (`backlog.py`), the learned line base + token * x (`evenload.scoring.prediction`), n requests in
flight of which o are other replicas', l = n * token over the candidates' mean of that, a typical prompt p, room r in
the KV caches and freshness f of the snapshots:

    ttft   = base * (1 + awaiting * own requests awaiting first token) + token * x
    crowd  = token * trust * p * (e * (load * l + load_square * l^2) + f^2 * r * strangers * o / (n + 4))
    harm   = token * trust * w(u) * f^2 * harm_strangers * (u / (u + long_tokens))^2 * o / (n + 4)
    errors = fail_ms * errors / (successes + 1)                          from the second error in 10 s on
    cost   = (ttft + crowd + harm + errors) * max(1, slowness / slow_from) * (1 + cooling, while it cools after a 429)
    cost   = (cost + queue_ms * k * queued) * (1 + kv * k)

With the share g of a cache that the gauges show, prompt tokens t in flight there of which a await their first token:

    c    = (1 - r) * sum of g / sum of (t - a), over all candidates: use per prompt token in a cache, with its answer
    used = max(g + c * a, c * t) + c * prompt tokens

k is how short the cache will be: 0 up to a use of 80 %, 1 at 100 %. r is 1 up to a mean g of 40 %, 0 at 80 %: short
caches need the evenest spread. What is told of other replicas is believed for 0.2 s and then less and less, until at
1 s each instance is taken for the mean of all; f is the mean of that belief.

- `awaiting` tells equal providers apart: one that stops answering fills up and is left alone before any answer is late.
  The other replicas' requests are left out: they are 0.2 s old, and with them a stuck provider was left later.
- `crowd` keeps decoders even, in shares of capacity; e is 1 for a replica with a fifth of all in flight, 0 with a tenth
  (`_evenness`): many replicas that all level what they are told of each other overshoot, however fresh it is. Its
  `strangers` term makes an instance dearer the more of its load comes from other replicas, so that each replica comes
  to prefer some instances by itself. There its own leases, which are exact, are nearly all there is to know; elsewhere
  it would act on snapshots that are older than a prompt takes.
- `harm`: a long prompt of u tokens, work w(u) = work_of(u), goes where few will wait behind it unawares. With the share
  not squared, middling prompts gathered as well, and near the knee those who decoded beside them missed their TPOT.
- `used`: gauges are late and do not show what is queued, and one long prompt takes a third of a short cache. c * t is
  there for preempted requests, which are neither in the cache nor awaiting. The factor 1 - r: a prompt half computed is
  in g as well as in a, so that long ones (S5) passed for full caches. Nobody says how many tokens a cache holds;
  c is the fleet's, so that between unequal caches c * t is off by as much as they differ.
- The load of an instance of weight w, its n, o and requests awaiting, counts 1/w (`weights.py`); work does not.
- base and token of a candidate are drawn to the median of all unless they differ clearly: noise in an estimate must not
  shift load, for the shifted load would confirm it. A provider has no trusted token cost: base and `awaiting` remain.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from evenload.routing.backlog import work_before
from evenload.routing.policy import InstanceView, Request
from evenload.routing.retest import AFTER_MS, GROWTH, SHARE
from evenload.scoring.prediction import work_of

Share = Annotated[float, Meta(ge=0, le=1)]
Factor = Annotated[float, Meta(ge=0, le=1e6)]

FRESH_MS, STALE_MS = 200.0, 1_000.0  # the usual age of snapshots, and what is too old to act on
FEW = 4.0  # in-flight requests below which shares of them mean little
FIT_WEIGHT_MIN = 5.0  # samples below which an instance is taken for a typical one
UNKNOWN_BASE_MS = 50.0  # while nothing has been learned of anybody: any figure will do that makes backlog count
UNKNOWN_TOKEN_MS = 0.05
USED_MOST = 2.0  # KV caches' worth of tokens, beyond which it makes no difference
TOKEN_MS_MIN = 1e-9  # below it a token costs nothing, and a division by it overflows


class Constants(Struct, frozen=True, kw_only=True):
    """Constants of `predictive`; zero switches a term off. Figures: docs/policies.md.

    Attributes:
        awaiting: of base, per request awaiting: 5 % lets a stuck provider have one or two more than the others.
        load, load_square: evenness of decoders; less, and TPOT suffers; more, and TTFT does.
        even_share: own share of all in flight up to which evenness is left to chance; twice that counts in full.
        strangers: how much a replica keeps to itself; at 8 it spills over to others' instances too late.
        harm_strangers, long_tokens: where long prompts go; without, 1 to 2 % of short ones wait seconds.
        base_spread, token_spread: relative difference from the median that is believed by half.
        base_excess, token_least: the most that base, the least that token may be, in medians: an overloaded engine can
            teach a steep base and a flat token cost, and a token cost of nothing draws every long prompt.
        fail_ms: about the SLO: a retry costs that.
        cooling: by how much more an instance costs that refused with 429 or 503, while it cools.
        slow_from: slowness that is still noise: TTFT of a healthy provider reaches 1.3 in the mean.
        kv, queue_ms: at a full KV cache, what the cost is multiplied by, less one, and what each request in the
            engine's queue adds; both rise from 80 %. A queue in front of a free cache is gone before it is told of.
        ahead: how much of what gauges do not show yet counts; at 0, k is of the gauge alone.
        tie: relative difference in cost that does not matter.
        tie_crowded: by how much that grows where a replica's own traffic is next to nothing (`tie_width`).
        retest_share, retest_after_ms, retest_growth: see `retest.py`.
    """

    awaiting: Factor = 0.05
    load: Factor = 1.5
    load_square: Factor = 1.5
    even_share: Share = 0.1
    strangers: Factor = 5.0
    harm_strangers: Factor = 24.0
    long_tokens: Factor = 8_000.0
    base_spread: Factor = 0.4
    token_spread: Factor = 0.35
    base_excess: Factor = 2.0
    token_least: Share = 0.25
    fail_ms: Factor = 1_000.0
    cooling: Factor = 4.0
    slow_from: Factor = 1.5
    kv: Factor = 6.0
    queue_ms: Factor = 500.0
    ahead: Factor = 1.0
    tie: Share = 0.02
    tie_crowded: Factor = 2.4
    retest_share: Share = SHARE
    retest_after_ms: Annotated[int, Meta(ge=1)] = AFTER_MS
    retest_growth: Factor = GROWTH

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


def costs_ms(candidates: Sequence[InstanceView], request: Request, now_ms: int, k: Constants) -> list[float]:
    """Return the cost of each candidate, milliseconds and more than 0."""
    bases, rates, trust = _lines(candidates, k)
    size = float(request.prompt_tokens)
    pressures, room = _pressures(candidates, size, k.ahead)
    beliefs = _beliefs(candidates, now_ms)
    held = tokens = foreign = own = 0
    load = belief_sum = believed = 0.0
    for view, token_ms, belief in zip(candidates, rates, beliefs, strict=True):
        others = view.others_in_flight
        own += view.in_flight
        held += view.in_flight + others
        tokens += view.in_flight_tokens + view.others_in_flight_tokens
        load += (view.in_flight + others) / view.weight * token_ms
        belief_sum += belief
        if belief > 0.0:
            believed += view.weight
            foreign += others
    number = len(candidates)
    mean = foreign / believed if believed > 0.0 else 0.0
    typical = trust * tokens / held if held else 0.0
    even = number / load if load > TOKEN_MS_MIN else 0.0
    long = size / (size + k.long_tokens) if size else 0.0
    harm = k.harm_strangers * trust * work_of(size) * (long * long)
    fresh = belief_sum / number
    aloof = (harm + typical * k.strangers * room) * fresh * fresh
    evenness = _evenness(own, held, k.even_share) * typical
    load_linear, load_square = k.load * evenness, k.load_square * evenness
    awaiting, slow_from = k.awaiting, k.slow_from
    costs: list[float] = []
    for view, base_ms, token_ms, pressure, belief in zip(candidates, bases, rates, pressures, beliefs, strict=True):
        weight = view.weight
        foreigners = mean + belief * (view.others_in_flight / weight - mean)
        count = view.in_flight / weight + foreigners
        share = count * token_ms * even
        work = work_before(view, request, now_ms, token_ms)
        work += share * (load_linear + load_square * share) + aloof * foreigners / (count + FEW)
        cost = base_ms * (1.0 + awaiting * view.awaiting / weight) + token_ms * work
        state = view.state
        if state.err_sum > 1:  # one odd failure convicts nobody
            cost += k.fail_ms * state.err_sum / (state.ok_sum + 1.0)
        if now_ms < state.cooling_until_ms:
            cost *= 1.0 + k.cooling
        slowness = state.slowness
        if slowness > slow_from > 0.0:
            cost *= slowness / slow_from
        if pressure > 0.0:
            cost = (cost + k.queue_ms * pressure * (state.waiting or 0)) * (1.0 + k.kv * pressure)
        costs.append(cost)
    return costs


def _evenness(own: int, everybody: int, least: float) -> float:
    """Return how much evenness of decoders counts: 0 up to a share `least` of all in flight, 1 from twice that."""
    share = (own + 1) / (everybody + 1)
    if share >= 2.0 * least:  # also where `least` is 0: the fading is off
        return 1.0
    return share / least - 1.0 if share > least else 0.0


def tie_width(candidates: Sequence[InstanceView], k: Constants) -> float:
    """Return the relative difference in cost that does not matter to this replica.

    With `own` of `all` requests in flight at n candidates, this replica's traffic fills `full` = n * own / all of them:

        width = tie + tie_crowded * max(0, 1 - full)^2

    Where it fills less than one, it can have no instance of its own, its leases tell next to nothing, and all replicas
    know the same old counts: who is cheapest by those is sent everybody's requests until the next snapshot. So the
    requests are spread at random over all that are about as cheap.
    """
    own = everybody = 1
    for view in candidates:
        own += view.in_flight
        everybody += view.in_flight + view.others_in_flight
    empty = 1.0 - len(candidates) * own / everybody
    return k.tie + k.tie_crowded * empty * empty if empty > 0.0 else k.tie


def _beliefs(candidates: Sequence[InstanceView], now_ms: int) -> list[float]:
    """Return how much to believe what is told of other replicas: 1 when it just came, 0 when it is old.

    For the rest, the instance is taken for a typical one: replicas that act on the same old figures do so in step.
    """
    beliefs: list[float] = []
    for view in candidates:
        told_ms = view.snapshot_ms
        age_ms = STALE_MS if told_ms is None else now_ms - told_ms
        if age_ms <= FRESH_MS:
            beliefs.append(1.0)
        else:
            beliefs.append((STALE_MS - age_ms) / (STALE_MS - FRESH_MS) if age_ms < STALE_MS else 0.0)
    return beliefs


def _pressures(candidates: Sequence[InstanceView], size: float, ahead: float) -> tuple[list[float], float]:
    """Return how short each KV cache will be with a prompt of `size` tokens, and how little that matters as yet.

    The first is 0 up to the threshold of the score, 1 when the cache is full, more when more is held than fits; the
    second is 1 up to a mean use, as shown, of half the threshold and 0 at it.
    """
    shown = thresholds = 0.0
    inside = 0  # prompt tokens past their first token, which is where gauges see them
    rows: list[tuple[float, float | None, int, int]] = []
    for view in candidates:
        threshold, usage = view.config.kv_threshold, view.state.kv_usage
        held = view.in_flight_tokens + view.others_in_flight_tokens
        awaiting = view.awaiting_tokens + view.others_awaiting_tokens
        if usage is not None:
            shown += usage
            inside += held - awaiting
        thresholds += threshold
        rows.append((threshold, usage, held, awaiting))
    room = 0.0 if shown >= thresholds else min(1.0, 2.0 - 2.0 * shown / thresholds)
    per_token = ahead * (1.0 - room) * shown / inside if inside > 0 else 0.0
    own = per_token * size
    pressures: list[float] = []
    for threshold, usage, held, awaiting in rows:
        if usage is None:
            pressures.append(0.0)
            continue
        used, also = usage + per_token * awaiting, per_token * held
        used = own + (used if used > also else also)
        if used <= threshold:
            pressures.append(0.0)
        else:
            pressures.append(((used if used < USED_MOST else USED_MOST) - threshold) / (1.0 - threshold))
    return pressures, room


def _lines(candidates: Sequence[InstanceView], k: Constants) -> tuple[list[float], list[float], float]:
    """Return bases, token costs, both drawn to the medians, and the square of the median trust.

    The square, because at a trust of a third, as a provider's slope has it by luck, crowding would still outweigh a
    request or two that await their first token. A value at relative distance d from the median m is drawn to
    m * (1 + d * d^4 / (d^4 + spread^4)).
    """
    states = [view.state for view in candidates]
    known = [state for state in states if state.fit_weight >= FIT_WEIGHT_MIN]
    if not known:
        return [UNKNOWN_BASE_MS] * len(states), [UNKNOWN_TOKEN_MS] * len(states), 1.0
    base_ms = _median([state.base_ms for state in known])
    token_ms = _median([state.token_ms for state in known])
    trust = _median([state.fit_trust for state in known])
    base_most, token_least, trust_least = k.base_excess * base_ms, k.token_least * token_ms, 0.5 * trust
    square = k.base_spread * k.base_spread, k.token_spread * k.token_spread
    base_limit, token_limit = square[0] * square[0], square[1] * square[1]
    bases: list[float] = []
    rates: list[float] = []
    for state in states:
        base, rate = base_ms, token_ms
        if state.fit_weight >= FIT_WEIGHT_MIN:
            off = state.base_ms / base_ms - 1.0
            fourth = off * off * off * off
            if fourth > 0.0:
                base = base_ms * (1.0 + off * (fourth / (fourth + base_limit)))
                base = base if base < base_most else base_most
            if token_ms > TOKEN_MS_MIN and state.fit_trust > trust_least:
                off = state.token_ms / token_ms - 1.0
                fourth = off * off * off * off
                if fourth > 0.0:
                    rate = token_ms * (1.0 + off * (fourth / (fourth + token_limit)))
                    rate = rate if rate > token_least else token_least
        bases.append(base)
        rates.append(rate)
    return bases, rates, trust * trust


def _median(values: list[float]) -> float:
    values.sort()
    return values[len(values) // 2]
