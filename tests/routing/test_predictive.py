"""`predictive`: what makes an instance dear, who is re-tested, and what cannot draw a herd."""

import random
from collections import Counter
from typing import Any

import pytest

from evenload.routing import POLICIES, InstanceView, Request
from evenload.routing.affinity import home_of
from evenload.routing.backlog import REPORT_AGE_MS, expect, explained_ms, work_before
from evenload.routing.predictive import Predictive
from evenload.routing.predictive_constants import Constants
from evenload.routing.predictive_cost import costs_ms
from evenload.routing.predictive_fleet import UNKNOWN_BASE_MS
from evenload.routing.retest import AFTER_MS, GROWTH, SHARE, due
from evenload.scoring.prediction import work_of
from tests.routing.views import NOW_MS, view

REQUEST = Request(prompt_tokens=1000)
ENGINE = {"fit_weight": 100.0, "fit_trust": 1.0, "base_ms": 40.0, "token_ms": 0.03, "slow_at_ms": NOW_MS}
PROVIDER = ENGINE | {"base_ms": 200.0, "token_ms": 0.0, "fit_trust": 0.0}


def engine(name: str, load: dict[str, int] | None = None, **known: object) -> InstanceView:
    """An engine's view; `load` are fields of the view, `known` of its state."""
    made = view(name, **(ENGINE | known))  # type: ignore[arg-type]
    made.snapshot_ms = NOW_MS
    for field, value in (load or {}).items():
        setattr(made, field, value)
    return made


def provider(name: str, load: dict[str, int] | None = None, **known: object) -> InstanceView:
    return engine(name, load, **(PROVIDER | known))


def costs(*views: InstanceView, request: Request = REQUEST, **constants: float) -> list[float]:
    return costs_ms(views, request, NOW_MS, Constants(**constants))[0]  # type: ignore[arg-type]


def test_the_cost_of_idle_engines_is_the_predicted_ttft() -> None:
    expected = 40.0 + 0.03 * work_of(1000.0)
    assert costs(engine("a"), engine("b")) == [expected, expected]


def test_prompts_that_await_their_first_token_count_by_their_tokens() -> None:
    views = [
        engine("a", {"awaiting_tokens": 4000, "awaiting": 1}),
        engine("b", {"awaiting_tokens": 900, "awaiting": 3}),
    ]
    assert costs(*views)[0] > costs(*views)[1]
    assert Predictive().choose(views, REQUEST, NOW_MS, random.Random(1)).index == 1


def test_what_the_cache_holds_need_not_be_computed() -> None:
    assert work_before(engine("a", {"cached_tokens": 600}), REQUEST, NOW_MS, 0.03) == work_of(400.0)
    assert work_before(engine("a", {"cached_tokens": 4000}), REQUEST, NOW_MS, 0.03) == 0.0


def test_requests_that_begin_alike_meet_unless_their_home_is_busy() -> None:
    """Every router takes a part of such a prompt for cached at the same instance, whoever has asked there."""
    fleet = [engine(name) for name in "abcd"]
    homes = {}
    for prefix in range(1, 41):
        request = Request(prompt_tokens=4000, prefix=prefix)
        found = costs(*fleet, request=request)
        homes[prefix] = home_of(fleet, prefix)
        assert found.index(min(found)) == homes[prefix]
        assert found[homes[prefix]] == pytest.approx(40.0 + 0.03 * work_of(0.4 * 4000))
        assert Predictive().choose(fleet, request, NOW_MS, random.Random(prefix)).index == homes[prefix]
        assert len(set(costs(*fleet, request=request, home=0))) == 1
        load = {"awaiting_tokens": 9000}
        busy = [engine(name, load if at == homes[prefix] else {}) for at, name in enumerate("abcd")]
        assert Predictive().choose(busy, request, NOW_MS, random.Random(prefix)).index != homes[prefix]
    spread = Counter(home_of(fleet, prefix) for prefix in range(1, 4001))
    assert all(900 < count < 1100 for count in spread.values())
    fewer = {prefix: home_of(fleet[:3], prefix) for prefix in homes}
    assert all(fewer[prefix] == home for prefix, home in homes.items() if home < 3)  # nobody else's moved


def test_what_is_known_to_be_cached_harms_nobody_and_long_is_what_is_long_beside_the_others() -> None:
    held = {"in_flight": 10, "in_flight_tokens": 10_000, "others_in_flight": 10, "others_in_flight_tokens": 10_000}
    request = Request(prompt_tokens=16_000)
    known, unknown = costs(engine("a", held | {"cached_tokens": 15_900}), engine("b", held), request=request)
    alone, same = costs(engine("a", held), engine("b", held), request=request, harm_strangers=0)
    assert alone == same
    short = costs(engine("a", held), engine("b", held), request=Request(prompt_tokens=100), harm_strangers=0)[0]
    assert known == pytest.approx(short, rel=0.01)
    assert unknown > 1.5 * alone  # of which the harm is a good part
    longer = held | {"in_flight_tokens": 160_000, "others_in_flight_tokens": 160_000}  # all others are as long
    harms = []
    for load, factor in ((held, 2.0), (longer, 0.0), (longer, 2.0)):
        views = [engine("a", load), engine("b", load)]
        with_harm, without = (
            costs(*views, request=request, long_usual=factor, harm_strangers=weight)[0] for weight in (24.0, 0.0)
        )
        harms.append(with_harm - without)
    assert harms[0] == pytest.approx(harms[1])  # among short ones nothing changes
    assert harms[2] / harms[1] == pytest.approx((24_000 / 48_000) ** 2)


def test_other_replicas_prompts_count_less_what_was_computed_since_the_report() -> None:
    seen = engine("a", {"others_awaiting_tokens": 50_000})
    seen.snapshot_ms = NOW_MS - 150
    done = (150 + REPORT_AGE_MS) / 0.03
    assert work_before(seen, Request(), NOW_MS, 0.03) == work_of(50_000 - done)
    seen.others_awaiting_tokens = 3000  # long since computed
    assert work_before(seen, Request(), NOW_MS, 0.03) == 0.0


def test_a_provider_that_stops_answering_is_left_alone_before_any_answer_is_late() -> None:
    views = [provider(name, {"awaiting": 3, "in_flight": 50, "others_in_flight": 20}) for name in "abcde"]
    views.append(provider("stuck", {"awaiting": 5, "in_flight": 8}))
    rng = random.Random(3)
    chosen = Counter(Predictive().choose(views, REQUEST, NOW_MS, rng).index for _ in range(2000))
    assert chosen[5] == 0
    assert min(chosen[index] for index in range(5)) > 300


def test_a_replica_prefers_instances_that_others_do_not_use() -> None:
    mine = engine("mine", {"in_flight": 40, "in_flight_tokens": 40_000})
    theirs = engine("theirs", {"others_in_flight": 40, "others_in_flight_tokens": 40_000})
    own, foreign = costs(mine, theirs)
    assert foreign - own > 0.03 * 1000 * 3
    equal, also = costs(mine, theirs, strangers=0, harm_strangers=0)
    assert equal == also
    mine.awaiting_tokens = 8000  # but not at any price
    assert Predictive().choose([mine, theirs], REQUEST, NOW_MS, random.Random(1)).index == 1


def test_old_words_on_other_replicas_move_nobody() -> None:
    """As seen in S10: replicas that act on the same old snapshot do so in step."""
    idle = engine("idle", {"in_flight": 10, "in_flight_tokens": 9000})
    busy = engine("busy", {"in_flight": 10, "in_flight_tokens": 9000, "others_in_flight": 40})
    seen = {}
    for age_ms in (0, 200, 600, 1000, 60_000):
        idle.snapshot_ms = busy.snapshot_ms = NOW_MS - age_ms
        cheap, dear = costs(idle, busy)
        seen[age_ms] = dear - cheap
    assert seen[0] == seen[200] > seen[600] > seen[1000] == seen[60_000] == 0.0
    idle.snapshot_ms = busy.snapshot_ms = NOW_MS  # new snapshots of old words: own events that are not in them tell
    for age_ms in (0, 200, 600, 1000, 60_000):
        idle.pending_ms = busy.pending_ms = NOW_MS - age_ms
        cheap, dear = costs(idle, busy)
        assert dear - cheap == seen[age_ms]
    idle.pending_ms = busy.pending_ms = None
    idle.snapshot_ms = None  # nothing was told of one: it is taken for the mean of the others
    busy.snapshot_ms = NOW_MS
    cheap, dear = costs(idle, busy)
    assert cheap == dear


def test_an_instance_that_refused_is_dear_while_it_cools() -> None:
    plain, cooling, cooled = costs(
        engine("a"), engine("b", cooling_until_ms=NOW_MS + 1), engine("c", cooling_until_ms=NOW_MS)
    )
    assert cooling == 5.0 * plain
    assert cooled == plain


def test_a_short_kv_cache_ends_keeping_to_oneself() -> None:
    loads = {"in_flight_tokens": 40_000, "in_flight": 40}, {"others_in_flight_tokens": 40_000, "others_in_flight": 40}
    mine, theirs = (engine(name, load, kv_usage=1.0) for name, load in zip("ab", loads, strict=True))
    alike = costs(mine, theirs, harm_strangers=0)
    assert alike[0] == alike[1]


def test_a_long_prompt_goes_where_nobody_will_wait_behind_it_unawares() -> None:
    mine = engine("mine", {"in_flight": 40, "in_flight_tokens": 40_000, "awaiting_tokens": 9000})
    theirs = engine("theirs", {"others_in_flight": 40, "others_in_flight_tokens": 40_000})
    long = Request(prompt_tokens=50_000)
    pick = Predictive().choose
    assert pick([mine, theirs], REQUEST, NOW_MS, random.Random(1)).index == 1
    assert pick([mine, theirs], long, NOW_MS, random.Random(1)).index == 0


def test_slowness_counts_from_where_it_is_no_noise() -> None:
    plain, noisy, slow = costs(engine("a"), engine("b", slowness=1.5), engine("c", slowness=3.0))
    assert noisy == plain
    assert slow == 2.0 * plain


def test_one_odd_failure_convicts_nobody_but_the_second_does() -> None:
    plain, once, twice = costs(engine("a"), engine("b", err_sum=1, ok_sum=9), engine("c", err_sum=2, ok_sum=9))
    assert once == plain
    assert twice == plain + 1000.0 * 2 / 10.0


def test_a_full_kv_cache_and_its_queue_are_dear_a_queue_alone_is_not() -> None:
    plain, queued, full = costs(
        engine("a", kv_usage=0.8),
        engine("b", kv_usage=0.5, waiting=9),
        engine("c", kv_usage=1.0, waiting=2),
        strangers=0,
    )
    assert queued == plain
    assert full == pytest.approx((plain + 2 * 100.0) * 7.0)


def test_a_full_cache_explains_why_its_instance_is_slow() -> None:
    """Slowness of 6 is 3 more than 1.5 by 1.5; a cache that is half way from 80 % to full explains half of the 3."""
    views = [engine(str(usage), kv_usage=usage, slowness=6.0) for usage in (0.8, 0.9, 1.0)]
    plain, half, full = costs(*views, strangers=0, ahead=0)
    quick = costs(engine("quick", kv_usage=0.8), strangers=0, ahead=0)[0]
    assert plain == pytest.approx(quick * 4.0)
    assert half == pytest.approx(quick * 2.5 * 4.0)
    assert full == pytest.approx(quick * 7.0)
    assert costs(*views, strangers=0, ahead=0, slow_full=0)[2] == pytest.approx(quick * 4.0 * 7.0)
    assert costs(*views, strangers=0, ahead=0, slow_from=0) == costs(
        *(engine(str(usage), kv_usage=usage) for usage in (0.8, 0.9, 1.0)), strangers=0, ahead=0
    )


def test_where_all_caches_overflow_what_is_held_decides_not_who_was_slow_first() -> None:
    """As seen in S6: a burst of long prompts went to whoever had overflowed last, and one worker died after another."""
    held = {"in_flight": 30, "in_flight_tokens": 60_000}
    more = {"in_flight": 30, "in_flight_tokens": 90_000}
    views = [engine("less", held, kv_usage=1.0, slowness=9.5), engine("more", more, kv_usage=1.0, slowness=1.7)]
    long = Request(prompt_tokens=25_000)
    less, most = costs(*views, request=long)
    assert less < most
    less, most = costs(*views, request=long, slow_full=0)
    assert less > most


def test_prompts_that_gauges_do_not_show_yet_fill_a_cache() -> None:
    """0.7 + 0.5 of the caches are used by 6000 prompt tokens; half of 2e-4 a token, for the mean use is 60 %."""
    views = [
        engine("a", {"in_flight_tokens": 5000, "others_in_flight_tokens": 1000, "awaiting_tokens": 2000}, kv_usage=0.7),
        engine("b", {"in_flight_tokens": 2000}, kv_usage=0.5),
    ]
    off: Any = {"load": 0, "load_square": 0, "strangers": 0, "harm_strangers": 0}
    blind, seen = costs(*views, ahead=0, **off), costs(*views, **off)
    assert seen[1] == blind[1]  # 0.5 and 0.1 for the request
    assert blind[0] == 40.0 + 0.03 * work_of(3000.0)
    assert seen[0] == pytest.approx(blind[0] * (1.0 + 6.0 * (0.7 + 0.2 + 0.1 - 0.8) / 0.2))


def test_preempted_requests_count_though_no_gauge_shows_them() -> None:
    """Use of 1.4 in two caches by 10,500 tokens, at a mean of 70 %: 0.75 * 1.4 / 10,500 = 1e-4 a token."""
    views = [
        engine("a", {"in_flight_tokens": 9500}, kv_usage=0.71),
        engine("b", {"others_in_flight_tokens": 1000}, kv_usage=0.69),
    ]
    dear, cheap = costs(*views, load=0, load_square=0, strangers=0, harm_strangers=0)
    assert cheap == 40.0 + 0.03 * work_of(1000.0)  # 0.69 and 0.1 for the request
    assert dear == pytest.approx(cheap * (1.0 + 6.0 * (0.95 + 0.1 - 0.8) / 0.2))


def test_where_caches_are_mostly_free_the_gauges_alone_count() -> None:
    """As seen in S5: a long prompt half computed is in the gauge and awaiting, too, and passed for a full cache."""
    views = [
        engine("a", {"in_flight_tokens": 60_000, "awaiting_tokens": 59_000}, kv_usage=0.5),
        engine("b", {"in_flight_tokens": 2000}, kv_usage=0.3),
    ]
    assert costs(*views) == costs(*views, ahead=0)


def test_what_a_few_tokens_say_of_the_caches_is_bounded_and_gaugeless_instances_stay_out_of_it() -> None:
    odd, bare = engine("odd", {"in_flight_tokens": 1}, kv_usage=0.9), provider("bare", {"in_flight_tokens": 10**6})
    plain = costs(odd, bare, kv=0)
    seen = costs(odd, bare)
    assert seen[0] == pytest.approx(plain[0] * 97.0)  # four caches' worth: (4 - 0.8) / 0.2 = 16
    assert seen[1] == plain[1]


def test_an_instance_of_which_nothing_is_known_is_taken_for_a_typical_one() -> None:
    known, fresh = costs(engine("a"), engine("b", fit_weight=1.0, base_ms=4000.0, token_ms=0.0))
    assert fresh == known
    assert costs(engine("a", fit_weight=0.0))[0] > UNKNOWN_BASE_MS


def test_machines_of_other_speed_are_believed_and_noise_is_not() -> None:
    views = [engine("a"), engine("b", token_ms=0.033), engine("c", token_ms=0.12), engine("d", token_ms=0.031)]
    fleet = costs(*views, base_spread=0.4)
    assert fleet[1] == pytest.approx(fleet[3], rel=0.01)
    assert fleet[2] > 2.0 * fleet[0]


def test_what_few_samples_say_keeps_nobody_away() -> None:
    """As seen in S11: who gets a few long prompts only learns a high base, and is sent nothing else for ever after."""
    fleet = [engine(name) for name in "abc"]
    for weight, least, most in ((4.9, 0.0, 0.0), (30.0, 14.1, 14.2), (300.0, 38.0, 40.0)):
        usual, *_, odd = costs(*fleet, engine("odd", base_ms=80.0, fit_weight=weight))
        assert least <= odd - usual <= most
    usual, *_, odd = costs(*fleet, engine("odd", base_ms=80.0, fit_weight=10.0), few_samples=0)
    assert odd - usual > 35.0


def test_an_overloaded_engine_that_taught_a_token_cost_of_nothing_draws_no_herd() -> None:
    """As seen in S5: 529 ms + 0 per token, learned at the start, and every long prompt went there."""
    views = [engine(name) for name in "abcdefg"]
    views.append(engine("odd", base_ms=529.0, token_ms=0.0, fit_trust=0.0))
    fleet = costs(*views, request=Request(prompt_tokens=50_000))
    assert fleet[7] >= fleet[0]


@pytest.mark.parametrize(("least", "counts"), [(0.1, 1.0), (0.25, 0.1), (0.3, 0.0)])
def test_evenness_is_left_to_chance_where_own_traffic_is_a_small_share(least: float, counts: float) -> None:
    # 10 of 39 in flight are one's own: a share of (10 + 1) / (39 + 1) = 0.275
    own = {"in_flight": 5, "in_flight_tokens": 5000}
    told = {"others_in_flight": 29, "others_in_flight_tokens": 29_000}
    views = [engine("a", own), engine("b", own | told)]
    only: Any = {"strangers": 0.0, "harm_strangers": 0.0, "tie_crowded": 0.0}
    a, b = costs(*views, even_share=least, **only)
    full_a, full_b = costs(*views, even_share=0.0, **only)
    assert b - a == pytest.approx(counts * (full_b - full_a))


def test_costs_within_two_percent_are_ties() -> None:
    views = [provider("a"), provider("b", base_ms=201.0), provider("c", {"awaiting": 1})]
    choices = [Predictive().choose(views, REQUEST, NOW_MS, random.Random(seed)) for seed in range(200)]
    assert {choice.index for choice in choices} == {0, 1}
    assert {(choice.reason, choice.probability) for choice in choices} == {("tie", 0.5)}


def crowd(own: int, others: tuple[int, int, int, int], **known: object) -> list[InstanceView]:
    """Four engines with own requests at the first; `known` is of the last."""
    loads = [{"others_in_flight": count, "others_in_flight_tokens": 1000 * count} for count in others]
    views = [engine(name, load) for name, load in zip("abc", loads[:3], strict=True)]
    views[0].in_flight = own
    return [*views, engine("d", loads[3], **known)]


@pytest.mark.parametrize(
    ("own", "others", "width"),
    [
        (40, (0, 0, 0, 0), 0.02),  # the only replica
        (0, (0, 0, 0, 0), 0.02),  # an idle fleet
        (24, (15, 20, 20, 20), 0.02),  # 25 of 100, one of four engines is its own
        (4, (20, 25, 25, 25), 0.02 + 2.4 * 0.8 * 0.8),  # 5 of 100: a fifth of an engine
        (0, (24, 25, 25, 25), 0.02 + 2.4 * 0.96 * 0.96),  # 1 of 100
    ],
)
def test_ties_widen_where_own_traffic_fills_less_than_one_instance(
    own: int, others: tuple[int, int, int, int], width: float
) -> None:
    views = crowd(own, others)
    assert costs_ms(views, REQUEST, NOW_MS, Constants())[1] == pytest.approx(width)
    assert costs_ms(views, REQUEST, NOW_MS, Constants(tie_crowded=0))[1] == 0.02


def test_a_replica_among_very_many_spreads_its_requests_but_not_to_who_is_slow() -> None:
    """As seen in S11: 32 replicas all sent to whoever was cheapest by the same snapshot."""
    views = crowd(1, (30, 20, 30, 30), slowness=17.0)
    rng = random.Random(4)
    spread = Counter(Predictive().choose(views, REQUEST, NOW_MS, rng).index for _ in range(900))
    assert set(spread) == {0, 1, 2}
    assert min(spread.values()) > 250
    alone = Predictive(tie_crowded=0, even_share=0)
    assert {alone.choose(views, REQUEST, NOW_MS, rng).index for _ in range(100)} == {1}


def test_whoever_awaits_a_first_token_or_was_heard_is_not_retested() -> None:
    long_ago = NOW_MS - 60_000
    views = [
        provider("heard"),
        provider("asked", {"awaiting": 1}, slow_at_ms=long_ago),
        provider("asked by others", {"others_awaiting": 1}, slow_at_ms=long_ago),
    ]
    assert due(views, NOW_MS) is None
    views += [provider("silent", slow_at_ms=NOW_MS - AFTER_MS), provider("longer", slow_at_ms=NOW_MS - 2 * AFTER_MS)]
    assert due(views, NOW_MS) == (4, 4 * SHARE)  # the square of the silence
    assert due(views, NOW_MS, steep=0) == (4, 2 * SHARE)
    assert due(views[:4], NOW_MS) == (3, SHARE)
    views[4].state.slow_at_ms = long_ago
    assert due(views, NOW_MS) == (4, GROWTH * SHARE)


def test_a_shunned_instance_gets_retests_only_and_they_stay_rare() -> None:
    views = [provider("a"), provider("b"), provider("shunned", slowness=17.0, slow_at_ms=NOW_MS - 60_000)]
    rng = random.Random(8)
    reasons = Counter(
        (views[choice.index].instance, choice.reason)
        for choice in (Predictive().choose(views, REQUEST, NOW_MS, rng) for _ in range(20_000))
    )
    assert reasons["shunned", "probe"] / 20_000 == pytest.approx(GROWTH * SHARE, rel=0.3)
    assert sum(count for (name, _), count in reasons.items() if name == "shunned") == reasons["shunned", "probe"]


def test_stated_probabilities_add_up_to_one_also_when_somebody_is_due() -> None:
    views = [provider("a"), provider("b"), provider("c", slow_at_ms=NOW_MS - 60_000)]
    rng = random.Random(5)
    stated: dict[int, float] = {}
    for _ in range(5000):
        choice = Predictive().choose(views, REQUEST, NOW_MS, rng)
        assert stated.setdefault(choice.index, choice.probability) == pytest.approx(choice.probability)
    assert sum(stated.values()) == pytest.approx(1.0)


def test_an_expectation_grows_by_what_turns_out_to_have_been_before_it() -> None:
    seen = engine("a", {"awaiting_tokens": 1000})
    expected = expect(seen, Request(prompt_tokens=500), NOW_MS)
    assert expected.work == int(work_of(1500.0))
    assert expected.ttft_ms == pytest.approx(40.0 + 0.03 * work_of(1500.0))
    assert explained_ms(seen, expected.ttft_ms) == expected.ttft_ms
    seen.others_awaiting_tokens = 50_000
    assert explained_ms(seen, expected.ttft_ms) == 40.0 + 0.03 * work_of(51_000.0)
    assert explained_ms(seen, None) is None


def test_constants_are_checked_and_named() -> None:
    with pytest.raises(ValueError, match="tie is 2"):
        Predictive(tie=2)
    with pytest.raises(TypeError, match=r"nexpected"):
        Predictive(magic=1)
    assert POLICIES["predictive"] is Predictive
    assert "strangers=5.0" in repr(Predictive())
