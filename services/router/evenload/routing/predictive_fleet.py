"""What `predictive` has to know of all candidates at once: lines drawn to their medians, loads, caches, beliefs.

`predictive_cost.py` says what becomes of it.
"""

from collections.abc import Sequence

from msgspec import Struct

from evenload.routing.policy import InstanceView
from evenload.routing.predictive_constants import Constants

FRESH_MS, STALE_MS = 200.0, 1_000.0  # the usual age of words, and what is too old to act on
FIT_WEIGHT_MIN = 5.0  # samples below which an instance is taken for a typical one
UNKNOWN_BASE_MS = 50.0  # while nothing has been learned of anybody: any figure will do that makes backlog count
UNKNOWN_TOKEN_MS = 0.05
FOURTH_MIN = 1e-200  # keeps a division by it finite where nothing is drawn to the median
TOKEN_MS_MIN = 1e-9  # below it a token costs nothing, and a division by it overflows


class Fleet(Struct, frozen=True, kw_only=True, gc=False):
    """What a choice needs to know of all candidates at once."""

    bases: list[float]
    rates: list[float]
    beliefs: list[float]  # in what is told of other replicas
    trust: float  # the square of the median
    fresh: float  # the mean belief
    mean_foreign: float  # requests of other replicas at an instance, of those that are believed
    own: int  # in flight, of this router
    held: int  # in flight, of everybody
    tokens: int  # prompt tokens of the latter
    inside: int  # those of them past their first token, where gauges see them
    load_ms: float  # requests in flight, each at the token cost of its instance
    shown: float  # use of the caches, by the gauges
    thresholds: float
    least_gap: float  # the least that a gauge shows below its threshold; negative beyond it
    most_tokens: int  # prompt tokens in flight at one instance, at most


def fleet_of(candidates: Sequence[InstanceView], now_ms: int, k: Constants) -> Fleet:  # noqa: PLR0915 - the same
    """Gather, in one loop for all: a loop more costs a tenth of a choice.

    Bases and token costs are drawn to their medians: a value at distance d from the median m, to
    m + d * d^4 / (d^4 + (spread * m)^4). The trust is squared, because at a trust of a third, as a provider's slope has
    it by luck, crowding would still outweigh a request or two that await their first token.
    """
    middle_base, middle_rate, trust = _medians(candidates)
    base_most, rate_least, trust_least = k.base_excess * middle_base, k.token_least * middle_rate, 0.5 * trust
    base_limit, rate_limit = _fourth(k.base_spread * middle_base), _fourth(k.token_spread * middle_rate)
    unsure = k.few_samples * k.few_samples
    by_content = k.content_age > 0.0
    sloped, fresh_from_ms = middle_rate > TOKEN_MS_MIN, now_ms - int(FRESH_MS)
    bases: list[float] = []
    rates: list[float] = []
    beliefs: list[float] = []
    own = held = tokens = inside = foreign = 0
    load_ms = shown = thresholds = believed = belief_sum = 0.0
    least_gap, most_tokens = 1.0, 0
    for view in candidates:
        state, weight, in_flight, others = view.state, view.weight, view.in_flight, view.others_in_flight
        base, rate = middle_base, middle_rate
        if state.fit_weight >= FIT_WEIGHT_MIN:
            known = state.fit_weight * state.fit_weight
            known /= known + unsure
            if sloped and state.fit_trust > trust_least:
                off = known * (state.token_ms - middle_rate)
                fourth = off * off
                fourth *= fourth
                rate += off * fourth / (fourth + rate_limit)
                rate = rate if rate > rate_least else rate_least
            off = known * (state.base_ms - middle_base)
            fourth = off * off
            fourth *= fourth
            base += off * fourth / (fourth + base_limit)
            base = base if base < base_most else base_most
        bases.append(base)
        rates.append(rate)
        belief, told_ms, pending_ms = 1.0, view.snapshot_ms, view.pending_ms if by_content else None
        if told_ms is None:
            belief = 0.0
        elif told_ms < fresh_from_ms or (pending_ms is not None and pending_ms < fresh_from_ms):
            age_ms = now_ms - (told_ms if pending_ms is None or told_ms < pending_ms else pending_ms)
            belief = (STALE_MS - age_ms) / (STALE_MS - FRESH_MS) if age_ms < STALE_MS else 0.0
        beliefs.append(belief)
        if belief > 0.0:
            belief_sum += belief
            believed += weight
            foreign += others
        own += in_flight
        here = in_flight + others
        held += here
        load_ms += here * rate if weight == 1.0 else here * rate / weight
        here = view.in_flight_tokens + view.others_in_flight_tokens
        tokens += here
        most_tokens = here if here > most_tokens else most_tokens
        threshold, usage = view.config.kv_threshold, state.kv_usage
        thresholds += threshold
        if usage is not None:
            shown += usage
            inside += here - view.awaiting_tokens - view.others_awaiting_tokens
            gap = threshold - usage
            least_gap = gap if gap < least_gap else least_gap
    mean = foreign / believed if believed > 0.0 else 0.0
    fresh = belief_sum / len(beliefs)
    return Fleet(
        bases=bases,
        rates=rates,
        beliefs=beliefs,
        trust=trust * trust,
        fresh=fresh,
        mean_foreign=mean,
        own=own,
        held=held,
        tokens=tokens,
        inside=inside,
        load_ms=load_ms,
        shown=shown,
        thresholds=thresholds,
        least_gap=least_gap,
        most_tokens=most_tokens,
    )


def _medians(candidates: Sequence[InstanceView]) -> tuple[float, float, float]:
    """Return the medians of base, token cost and trust of all of whom enough is known."""
    bases: list[float] = []
    rates: list[float] = []
    trusts: list[float] = []
    for view in candidates:
        state = view.state
        if state.fit_weight >= FIT_WEIGHT_MIN:
            bases.append(state.base_ms)
            rates.append(state.token_ms)
            trusts.append(state.fit_trust)
    if not bases:
        return UNKNOWN_BASE_MS, UNKNOWN_TOKEN_MS, 1.0
    bases.sort()
    rates.sort()
    trusts.sort()
    middle = len(bases) // 2
    return bases[middle], rates[middle], trusts[middle]


def _fourth(value: float) -> float:
    square = value * value
    return max(square * square, FOURTH_MIN)
