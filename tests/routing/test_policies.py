import random
from collections import Counter
from typing import Any

import pytest

from evenload.routing import POLICIES, InstanceView, LeaseBook, RecordedRng, ReplayedRng, Request
from evenload.routing.health_ramp import draw_weight
from evenload.routing.p2c import p2c
from evenload.routing.peak_ewma import UNMEASURED_MS, peak_cost
from evenload.routing.probe import PROBE_AFTER_MS, PROBE_SHARE
from tests.routing.views import NOW_MS, Draws, view

REQUEST = Request(prompt_tokens=100)


def chosen(policy: str, views: list[InstanceView], *draws: float, request: Request = REQUEST) -> str:
    choice = POLICIES[policy]().choose(views, request, NOW_MS, Draws(*draws))
    return views[choice.index].instance


def test_health_takes_the_better_of_two_after_two_points_per_own_request() -> None:
    views = [view("a", score=90.0, in_flight=3), view("b", score=85.0)]  # 84 against 85
    assert chosen("health", views, 0.0, 0.0) == "b"
    views = [view("a", score=90.0, in_flight=2), view("b", score=85.0)]  # 86 against 85
    assert chosen("health", views, 0.99, 0.0) == "a"


def test_health_gives_the_worst_of_three_nothing_as_published() -> None:
    views = [view("a", score=99.0), view("b", score=98.0), view("c", score=97.0)]
    rng = random.Random(1)
    shares = Counter(POLICIES["health"]().choose(views, REQUEST, NOW_MS, rng).index for _ in range(3000))
    assert shares[2] == 0
    assert shares[0] / 3000 == pytest.approx(2 / 3, abs=0.03)
    assert shares[1] / 3000 == pytest.approx(1 / 3, abs=0.03)


def test_peak_ewma_multiplies_latency_by_load() -> None:
    views = [view("a", in_flight=3, ewma_ttft_ms=100.0), view("b", in_flight=1, ewma_ttft_ms=250.0)]  # 400, 500
    assert chosen("peak-ewma", views, 0.6, 0.0) == "a"
    assert peak_cost(None, 0) == 0.0
    assert peak_cost(None, 2) == UNMEASURED_MS + 2


def test_peak_ewma_decay_fades_in_time_and_counts_failing_as_slow() -> None:
    slow = view("a", live_ttft_ms=3500.0, live_at_ms=NOW_MS - 10_000)  # faded to the half
    steady = view("b", live_ttft_ms=1600.0, in_flight=0)
    policy = POLICIES["peak-ewma-decay"]()
    assert policy.choose([slow, steady], REQUEST, NOW_MS, Draws(0.9, 0.0, 0.0)).costs == [1750.0, 1600.0]
    failing = view("c", live_ttft_ms=5.0, err=[10] + [0] * 9, err_sum=10)
    assert policy.choose([failing, steady], REQUEST, NOW_MS, Draws(0.0, 0.0)).index == 1


ANSWERING: dict[str, Any] = {"ok": [50] + [0] * 9, "ok_sum": 50, "live_ttft_ms": 200.0}
BAD: dict[str, dict[str, Any]] = {
    "cools": {"live_ttft_ms": 5.0, "cooling_until_ms": NOW_MS + 30_000, "cooling_cause": "engine_busy"},
    "fails": ANSWERING | {"live_ttft_ms": 5.0, "err": [13] + [0] * 9, "err_sum": 13},
    "fails all": {"live_ttft_ms": 5.0, "err": [2] + [0] * 9, "err_sum": 2},
    "has not been asked for long": {"live_at_ms": NOW_MS - 60_000, "cooling_until_ms": NOW_MS + 1},
}


def decayed(*views: InstanceView, tried: tuple[str, ...] = ()) -> Counter[str]:
    """Whom `peak-ewma-decay` takes, of 2000 requests."""
    policy, rng, request = POLICIES["peak-ewma-decay"](), random.Random(8), Request(tried=tried)
    choices = [policy.choose(views, request, NOW_MS, rng) for _ in range(2000)]
    assert all(len(choice.costs) == len(views) for choice in choices)
    return Counter(views[choice.index].instance for choice in choices)


@pytest.mark.parametrize("bad", BAD)
def test_peak_ewma_decay_puts_aside_who_cools_or_fails_while_another_one_is_well(bad: str) -> None:
    """P2C alone draws two of three bad ones half the time, and a probe would go to whoever is known least."""
    several = [view(name, **BAD[bad]) for name in "abc"]
    well = view("d", in_flight=30, **ANSWERING)
    assert decayed(*several, well) == {"d": 2000}
    assert set(decayed(well, *several)) == {"d"}
    assert set(decayed(*several)) == set("abc"), "where nobody is well, all are asked"


def test_peak_ewma_decay_puts_nobody_aside_for_one_odd_failure_or_few() -> None:
    once: dict[str, Any] = {"err": [1] + [0] * 9, "err_sum": 1}
    for known in (once, ANSWERING | {"err": [12] + [0] * 9, "err_sum": 12}):
        crowded = view("d", in_flight=30, **ANSWERING)  # 31 * 200 ms is more than 5 s
        assert decayed(view("a", **known), crowded)["a"] == 2000


def test_peak_ewma_decay_sends_a_retry_to_one_that_answers_and_has_not_failed() -> None:
    once = ANSWERING | {"err": [1] + [0] * 9, "err_sum": 1}
    unknown, failed, answers = view("a"), view("b", **once), view("c", in_flight=30, **ANSWERING)
    assert decayed(unknown, failed, answers, tried=("x",)) == {"c": 2000}
    assert decayed(unknown, failed, tried=("x",)) == {"b": 2000}
    assert set(decayed(unknown, view("d"), tried=("x",))) == {"a", "d"}
    assert decayed(unknown, failed, answers)["a"] > 0, "a first attempt may ask whom nobody knows"


def test_peak_ewma_decay_states_the_real_probabilities_among_those_that_are_well() -> None:
    views = [
        view("a", **BAD["cools"]),
        view("b", live_ttft_ms=200.0),
        view("c", live_ttft_ms=300.0, live_at_ms=NOW_MS - PROBE_AFTER_MS),
        view("d", live_ttft_ms=200.0),
    ]
    policy, rng, rounds = POLICIES["peak-ewma-decay"](), random.Random(7), 20_000
    choices = [policy.choose(views, REQUEST, NOW_MS, rng) for _ in range(rounds)]
    stated = {choice.index: choice.probability for choice in choices if choice.reason != "probe"}
    assert set(stated) | {2} == {1, 2, 3}
    for index, count in Counter(choice.index for choice in choices).items():
        assert count / rounds == pytest.approx(stated.get(index, PROBE_SHARE), abs=0.012)


def test_round_robin_takes_turns_by_ordinal() -> None:
    views = [view(name) for name in "abc"]
    assert [chosen("round-robin", views, request=Request(ordinal=n)) for n in range(4)] == ["a", "b", "c", "a"]


def test_least_connections_breaks_ties_at_random() -> None:
    views = [view("a", in_flight=1), view("b"), view("c")]
    assert {chosen("least-connections", views, draw) for draw in (0.1, 0.9)} == {"b", "c"}


def test_random_is_uniform() -> None:
    views = [view(name) for name in "abcd"]
    assert [chosen("random", views, draw) for draw in (0.0, 0.3, 0.6, 0.999)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_one_candidate_is_always_chosen(policy: str) -> None:
    choice = POLICIES[policy]().choose([view("a", score=0.0)], REQUEST, NOW_MS, random.Random(1))
    assert (choice.index, choice.probability) == (0, 1.0)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_stated_probabilities_are_the_real_ones(policy: str) -> None:
    rng = random.Random(7)
    views = [
        view(name, score=score, in_flight=load, ewma_ttft_ms=ttft, live_ttft_ms=ttft, live_at_ms=NOW_MS - age)
        for name, score, load, ttft, age in (
            ("a", 95.0, 2, 200.0, 0),
            ("b", 90.0, 2, 300.0, 100),
            ("c", 70.0, 0, 900.0, PROBE_AFTER_MS),
            ("d", 95.0, 2, 200.0, 0),
        )
    ]
    rounds = 20_000
    choices = [POLICIES[policy]().choose(views, Request(ordinal=n), NOW_MS, rng) for n in range(rounds)]
    if policy == "round-robin":
        return  # deterministic: each choice is certain
    stated = {choice.index: choice.probability for choice in choices if choice.reason != "probe"}
    for index, count in Counter(choice.index for choice in choices).items():
        assert count / rounds == pytest.approx(stated.get(index, PROBE_SHARE), abs=0.012)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_recorded_draws_replay_the_choice(policy: str) -> None:
    rng = random.Random(11)
    views = [
        view(name, score=60.0 + 10 * n, in_flight=n, live_at_ms=NOW_MS - 3000 * n) for n, name in enumerate("abcd")
    ]
    for _ in range(200):
        recorded = RecordedRng(rng)
        choice = POLICIES[policy]().choose(views, REQUEST, NOW_MS, recorded)
        assert POLICIES[policy]().choose(views, REQUEST, NOW_MS, ReplayedRng(recorded.draws)) == choice


def test_a_replay_that_wants_more_draws_says_so() -> None:
    with pytest.raises(IndexError, match="more uniforms"):
        POLICIES["random"]().choose([view("a"), view("b")], REQUEST, NOW_MS, ReplayedRng([]))


def test_weighted_draws_follow_the_weights() -> None:
    rng = random.Random(3)
    firsts = Counter(p2c([0.0, 1.0, 1.0], rng, [1.0, 1.0, 0.0]).index for _ in range(1000))
    assert firsts[0] == 1000  # the third is all but never drawn, so the first is always one of the two


def test_the_ramp_grows_with_the_damped_score() -> None:
    assert draw_weight(100.0) == 1.0
    assert draw_weight(65.0) == pytest.approx(0.0319, abs=1e-4)
    assert draw_weight(30.0) < 0.001
    assert draw_weight(0.0) > 0.0


def test_health_ramp_shuns_an_idle_instance_that_fails_everything() -> None:
    views = [view("black-hole", score=60.0), *(view(name, in_flight=20) for name in "abcde")]
    rng = random.Random(5)
    hits = sum(POLICIES["health-ramp"]().choose(views, REQUEST, NOW_MS, rng).index == 0 for _ in range(5000))
    assert hits < 50


def test_probes_go_to_the_longest_unmeasured_and_stay_rare() -> None:
    views = [view("a", live_at_ms=NOW_MS), view("shunned", score=1.0, live_at_ms=NOW_MS - 60_000), view("c")]
    rng = random.Random(9)
    reasons = Counter(
        (views[choice.index].instance, choice.reason)
        for choice in (POLICIES["health-ramp"]().choose(views, REQUEST, NOW_MS, rng) for _ in range(20_000))
    )
    assert reasons["shunned", "probe"] / 20_000 == pytest.approx(PROBE_SHARE, rel=0.3)
    fresh = [view("a"), view("b")]
    assert all(POLICIES["health-ramp"]().choose(fresh, REQUEST, NOW_MS, rng).reason != "probe" for _ in range(2000))


def test_parallel_requests_on_two_instances_split_evenly_by_own_load() -> None:
    """F40: stale gauges of 0 and 1 waiting do not send eight parallel requests to one of them."""
    book = LeaseBook()
    rng = random.Random(2)
    for _ in range(8):
        views = [view("a", in_flight=book.counts("a").in_flight), view("b", in_flight=book.counts("b").in_flight)]
        choice = POLICIES["health-ramp"]().choose(views, REQUEST, NOW_MS, rng)
        book.book(views[choice.index].instance, 100, 0.0)
    assert abs(book.counts("a").in_flight - book.counts("b").in_flight) <= 1


def test_a_thousand_concurrent_choices_differ_by_at_most_two() -> None:
    """F41: nothing lies between choosing and counting."""
    book = LeaseBook()
    rng = random.Random(4)
    for _ in range(1000):
        views = [view(name, in_flight=book.counts(name).in_flight) for name in "abcdefg"]
        choice = POLICIES["least-connections"]().choose(views, REQUEST, NOW_MS, rng)
        book.book(views[choice.index].instance, 1, 0.0)
    loads = [book.counts(name).in_flight for name in "abcdefg"]
    assert max(loads) - min(loads) <= 2


@pytest.mark.parametrize("policy", ["predictive", "health-ramp", "peak-ewma-decay", "least-connections"])
def test_a_burst_on_a_cold_fleet_whose_gauges_are_all_0_spreads_by_own_load(policy: str) -> None:
    """F34: gauges lag by seconds, so 0 running and 0 waiting say nothing of the hundred requests under way."""
    names = "abcde"
    book = LeaseBook()
    rng = random.Random(5)
    chooser = POLICIES[policy]()
    for _ in range(100):
        views = [view(name, running=0, waiting=0, kv_usage=0.0, gauges_ms=NOW_MS) for name in names]
        for one in views:
            counts = book.counts(one.instance)
            one.in_flight, one.awaiting = counts.in_flight, counts.awaiting
            one.in_flight_tokens, one.awaiting_tokens = counts.in_flight_tokens, counts.awaiting_tokens
        choice = chooser.choose(views, REQUEST, NOW_MS, rng)
        book.book(views[choice.index].instance, 100, 0.0)
    loads = [book.counts(name).in_flight for name in names]
    assert min(loads) >= 12  # of 20 each; two draws that always took the first would leave some with none
    assert max(loads) <= 28


def test_health_ramp_asks_a_long_unmeasured_instance_one_question_at_a_time() -> None:
    rng = random.Random(6)

    def hits(waiting: int) -> int:
        doubtful = view("doubtful", in_flight=waiting, live_at_ms=NOW_MS - PROBE_AFTER_MS - 1)
        doubtful.awaiting = waiting
        views = [doubtful, *(view(name, in_flight=3) for name in "abcde")]
        choices = [POLICIES["health-ramp"]().choose(views, REQUEST, NOW_MS, rng) for _ in range(2000)]
        return sum(choice.index == 0 and choice.reason != "probe" for choice in choices)

    assert hits(waiting=0) > 300
    assert hits(waiting=1) == 0
