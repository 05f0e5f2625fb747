"""What a request costs at each candidate: predicted TTFT, plus what it does to others, times what speaks against it.

With work x before it (`backlog.py`), the learned line base + token * x (`evenload.scoring.prediction`), n requests in
flight of which o are other replicas', l = n * token over the candidates' mean of that, the mean prompt p in flight,
room r in the KV caches and freshness f of the snapshots, u tokens to compute and L = max(long_tokens, long_usual * p):

    ttft   = base * (1 + awaiting * own requests awaiting first token) + token * x
    crowd  = token * trust * p * (e * (load * l + load_square * l^2) + f^2 * r * strangers * o / (n + 4))
    harm   = token * trust * w(u) * f^2 * harm_strangers * (u / (u + L))^2 * o / (n + 4)
    errors = fail_ms * errors / (successes + 1)                          from the second error in 10 s on
    slow   = max(0, slowness / slow_from - 1) * (1 - slow_full * min(1, k))
    cost   = (ttft + crowd + harm + errors) * (1 + slow) * (1 + cooling, while it cools after a 429)
    cost   = (cost + queue_ms * k * queued) * (1 + kv * k)

With the share g of a cache that the gauges show, prompt tokens t in flight there of which a await their first token:

    c    = (1 - r) * sum of g / sum of (t - a), over all candidates: use per prompt token in a cache, with its answer
    used = max(g + c * a, c * t) + c * prompt tokens

k is how short the cache will be: 0 up to a use of 80 %, 1 at 100 %, and on up to `kv_most` caches. r is 1 up to a mean
g of 40 %, 0 at 80 %: short caches need the evenest spread. What is told of other replicas is believed for 0.2 s and
then less and less, until at 1 s each instance is taken for the mean of all; f is the mean of that belief. Words are as
old as their snapshot, and as the oldest own event that this does not include: a new snapshot of old words is as bad as
an old one.

- `awaiting` tells equal providers apart: one that stops answering fills up and is left alone before any answer is late.
  The other replicas' requests are left out: they are 0.2 s old, and with them a stuck provider was left later.
- `crowd` keeps decoders even, in shares of capacity; e is 1 for a replica with a fifth of all in flight, 0 with a tenth
  (`_evenness`): many replicas that all level what they are told of each other overshoot, however fresh it is. Its
  `strangers` term makes an instance dearer the more of its load comes from other replicas, so that each replica comes
  to prefer some instances by itself. There its own leases, which are exact, are nearly all there is to know; elsewhere
  it would act on snapshots that are older than a prompt takes.
- `harm`: a long prompt, work w(u) = work_of(u), goes where few will wait behind it unawares. With the share
  not squared, middling prompts gathered as well, and near the knee those who decoded beside them missed their TPOT.
- u is what is not cached. Where the prompt's beginning belongs (`affinity.py`), the share `home` of it is taken for
  cached at least: all routers do so alike, hence what one sent there the next one finds there.
- `used`: gauges are late and do not show what is queued, and one long prompt takes a third of a short cache. c * t is
  there for preempted requests, which are neither in the cache nor awaiting. The factor 1 - r: a prompt half computed is
  in g as well as in a, so that long ones (S5) passed for full caches. Nobody says how many tokens a cache holds;
  c is the fleet's, so that between unequal caches c * t is off by as much as they differ.
- A full cache explains why its instance is slow. If slowness counted as well, then where all caches overflow the one
  that was the last to do so would look best however much it holds: in S6 the long prompts of a burst went there
  together, and its worker died; then the next one's.
- The load of an instance of weight w, its n, o and requests awaiting, counts 1/w (`weights.py`); work does not.
- base and token of a candidate are drawn to the median of all unless they differ clearly: noise in an estimate must not
  shift load, for the shifted load would confirm it. With a weight of samples s their difference from the median counts
  s^2 / (s^2 + few_samples^2). A provider has no trusted token cost: base and `awaiting` remain.
"""

from collections.abc import Sequence

from evenload.routing.affinity import home_of
from evenload.routing.backlog import REPORT_AGE_MS
from evenload.routing.policy import InstanceView, Request
from evenload.routing.predictive_constants import Constants
from evenload.routing.predictive_fleet import TOKEN_MS_MIN, Fleet, fleet_of
from evenload.scoring.prediction import ATTENTION_TOKENS, work_of

FEW = 4.0  # in-flight requests below which shares of them mean little


def costs_ms(  # noqa: PLR0915 - one loop, without calls: it is on the way of every request
    candidates: Sequence[InstanceView], request: Request, now_ms: int, k: Constants
) -> tuple[list[float], float]:
    """Return the cost of each candidate, milliseconds and more than 0, and the relative difference that is a tie."""
    fleet = fleet_of(candidates, now_ms, k)
    size, number, held = float(request.prompt_tokens), len(candidates), fleet.held
    room, per_token = _caches(fleet, k.ahead)
    trust, mean = fleet.trust, fleet.mean_foreign
    typical = trust * fleet.tokens / held if held else 0.0
    even = number / fleet.load_ms if fleet.load_ms > TOKEN_MS_MIN else 0.0
    usual = k.long_usual * fleet.tokens / held if held else 0.0
    long_tokens = usual if usual > k.long_tokens else k.long_tokens
    harm_strangers, square = k.harm_strangers * trust, fleet.fresh * fleet.fresh
    aloof_all = typical * k.strangers * room
    aloof_new = (aloof_all + harm_strangers * _harm(size, long_tokens)) * square
    home = home_of(candidates, request.prefix) if request.prefix and k.home > 0.0 else -1
    evenness = _evenness(fleet.own, held, k.even_share) * typical
    load_linear, load_square = k.load * evenness, k.load_square * evenness
    awaiting, slow_from, cooling, fail_ms = k.awaiting, k.slow_from, k.cooling, k.fail_ms
    costs: list[float] = []
    for view, base_ms, token_ms, belief in zip(candidates, fleet.bases, fleet.rates, fleet.beliefs, strict=True):
        own: float = view.in_flight
        others: float = view.others_in_flight
        waiting: float = view.awaiting
        weight = view.weight
        if weight != 1.0:
            own, others, waiting = own / weight, others / weight, waiting / weight
        foreigners = mean + belief * (others - mean)
        count = own + foreigners
        share = count * token_ms * even
        uncached, aloof = size, aloof_new
        if view.cached_tokens or len(costs) == home:
            cached = float(view.cached_tokens)
            if len(costs) == home and cached < k.home * size:
                cached = k.home * size
            uncached = size - cached if size > cached else 0.0
            aloof = (aloof_all + harm_strangers * _harm(uncached, long_tokens)) * square
        tokens = view.awaiting_tokens + uncached  # from here on `work_before`, without the call
        if view.others_awaiting_tokens:
            told = float(view.others_awaiting_tokens)
            if token_ms > 0.0 and view.snapshot_ms is not None:
                told -= (now_ms - view.snapshot_ms + REPORT_AGE_MS) / token_ms
            if told > 0.0:
                tokens += told
        work = tokens * (1.0 + tokens / ATTENTION_TOKENS)
        work += share * (load_linear + load_square * share) + aloof * foreigners / (count + FEW)
        cost = base_ms * (1.0 + awaiting * waiting) + token_ms * work
        state = view.state
        if state.err_sum > 1:  # one odd failure convicts nobody
            cost += fail_ms * state.err_sum / (state.ok_sum + 1.0)
        if now_ms < state.cooling_until_ms:
            cost *= 1.0 + cooling
        slowness = state.slowness
        if slowness > slow_from > 0.0:
            cost *= slowness / slow_from
        costs.append(cost)
    if per_token * (fleet.most_tokens + size) > fleet.least_gap:  # else no cache will be beyond its threshold
        _add_pressure(costs, candidates, size, per_token, k)
    return costs, tie_width(fleet.own, held, number, k)


def _harm(tokens: float, long_tokens: float) -> float:
    """Return what a prompt with so many tokens to compute does to those behind it; next to nothing if it is short."""
    long = tokens / (tokens + long_tokens)
    return work_of(tokens) * (long * long)


def _evenness(own: int, everybody: int, least: float) -> float:
    """Return how much evenness of decoders counts: 0 up to a share `least` of all in flight, 1 from twice that."""
    share = (own + 1) / (everybody + 1)
    if share >= 2.0 * least:  # also where `least` is 0: the fading is off
        return 1.0
    return share / least - 1.0 if share > least else 0.0


def tie_width(own: int, held: int, candidates: int, k: Constants) -> float:
    """Return the relative difference in cost that does not matter to this replica.

    With `own` of all `held` requests in flight at n candidates, this replica's traffic fills `full` = n * own / held of
    them, one more request counted on both sides:

        width = tie + tie_crowded * max(0, 1 - full)^2

    Where it fills less than one, it can have no instance of its own, its leases tell next to nothing, and all replicas
    know the same old counts: who is cheapest by those is sent everybody's requests until the next snapshot. So the
    requests are spread at random over all that are about as cheap.
    """
    empty = 1.0 - candidates * (own + 1) / (held + 1)
    return k.tie + k.tie_crowded * empty * empty if empty > 0.0 else k.tie


def _caches(fleet: Fleet, ahead: float) -> tuple[float, float]:
    """Return how little short caches matter as yet, and the use of a cache per prompt token in it.

    The first is 1 up to a mean use, as shown, of half the threshold and 0 at it; the second counts by the rest of it.
    """
    shown, thresholds = fleet.shown, fleet.thresholds
    room = 0.0 if shown >= thresholds else min(1.0, 2.0 - 2.0 * shown / thresholds)
    return room, ahead * (1.0 - room) * shown / fleet.inside if fleet.inside > 0 else 0.0


def _add_pressure(
    costs: list[float], candidates: Sequence[InstanceView], size: float, per_token: float, k: Constants
) -> None:
    """Raise the costs by how short each KV cache will be with a prompt of `size` tokens.

    That is 0 up to the threshold of the score, 1 when the cache is full, more when more is held than fits.
    """
    own = per_token * size
    for index, view in enumerate(candidates):
        usage, threshold = view.state.kv_usage, view.config.kv_threshold
        if usage is None:
            continue
        used = usage + per_token * (view.awaiting_tokens + view.others_awaiting_tokens)
        also = per_token * (view.in_flight_tokens + view.others_in_flight_tokens)
        used = own + (used if used > also else also)
        if used > threshold:
            pressure = ((used if used < k.kv_most else k.kv_most) - threshold) / (1.0 - threshold)
            cost, slowness = costs[index], view.state.slowness
            if slowness > k.slow_from > 0.0:
                explained = k.slow_full * (pressure if pressure < 1.0 else 1.0)
                cost *= 1.0 - explained * (1.0 - k.slow_from / slowness)  # of 1 + slow, which is in it already
            queued = k.queue_ms * pressure * (view.state.waiting or 0)
            costs[index] = (cost + queued) * (1.0 + k.kv * pressure)
