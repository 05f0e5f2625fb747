"""A tier that fails is passed over, and found out to answer again by single requests."""

import pytest
from msgspec.structs import replace

from evenload.routing import InstanceView, Request, eligible
from evenload.routing.recovery import PROBE_AFTER_S, PROBE_EVERY
from evenload.schemas import Event, FirstToken, InstanceState, Outcome, Overdue
from evenload.scoring import ScoringConfig, apply, at, fresh, score

CONFIG = ScoringConfig(evidence="censored")
T0 = 1_000_000
LIMIT_MS = 1_500.0


class Tiers:
    """Engines of priority 0 and one provider of priority 1, with the states that the fold makes of events."""

    def __init__(self, *engines: str) -> None:
        self.now_ms = T0
        self.states: dict[str, InstanceState] = {name: fresh(name, T0, CONFIG) for name in (*engines, "p")}
        self.awaiting = dict.fromkeys(self.states, 0)

    def tell(self, name: str, event: Event, *more: Event) -> None:
        for one in (event, *more):
            self.states[name] = apply(self.states[name], replace(one, instance=name), self.now_ms, CONFIG)

    def answers(self, name: str, ttft_ms: float = 20.0) -> None:
        self.tell(name, FirstToken(instance=name, ttft_ms=ttft_ms, prompt_tokens=10), Outcome(instance=name, kind="ok"))

    def fails(self, name: str, cause: str = "http_error") -> None:
        self.tell(name, Outcome(instance=name, kind="http_error", status=500, cause=cause))

    def serve_well(self, *names: str, seconds: int = 12, per_s: int = 10) -> None:
        for _ in range(seconds * per_s):
            self.now_ms += 1_000 // per_s
            for name in names:
                self.answers(name)

    def candidates(
        self, *tried: str, probing: bool = False, limit_ms: float | None = None
    ) -> tuple[list[str], list[str]]:
        """Return who may be chosen, and the reasons of all."""
        views = []
        for name, one in self.states.items():
            now = at(one, self.now_ms, CONFIG)
            view = InstanceView(instance=name, state=now, config=CONFIG, score=score(now, CONFIG))
            view.awaiting, view.priority = self.awaiting[name], int(name == "p")
            views.append(view)
        request = Request(prompt_tokens=10, ordinal=PROBE_EVERY - 1 if probing else 0, tried=tried)
        indices, reasons = eligible(views, request, self.now_ms, limit_ms)
        return [views[index].instance for index in indices], reasons

    def who(self, *tried: str, probing: bool = False, limit_ms: float | None = None) -> list[str]:
        return self.candidates(*tried, probing=probing, limit_ms=limit_ms)[0]


@pytest.mark.parametrize("limit_ms", [None, LIMIT_MS])
def test_a_tier_whose_members_all_fail_is_passed_over(limit_ms: float | None) -> None:
    tiers = Tiers("a", "b")
    assert tiers.who(limit_ms=limit_ms) == ["a", "b"], "who was never asked is asked first"
    tiers.fails("a")
    assert tiers.who(limit_ms=limit_ms) == ["a", "b"], "one may answer yet"
    tiers.fails("b")
    assert tiers.candidates(limit_ms=limit_ms) == (["p"], ["passed_over", "passed_over", ""])


def test_an_outage_after_good_times_shows_within_a_second_or_two() -> None:
    tiers = Tiers("a")
    tiers.serve_well("a")
    start_ms = tiers.now_ms
    while tiers.who() == ["a"]:
        tiers.now_ms += 100
        tiers.fails("a")
    assert 100 < tiers.now_ms - start_ms <= 1_500


def test_one_failure_among_successes_convicts_nobody() -> None:
    tiers = Tiers("a")
    tiers.serve_well("a", per_s=2)
    for _ in range(40):
        tiers.fails("a")
        assert tiers.who() == ["a"]
        tiers.serve_well("a", seconds=3, per_s=2)


@pytest.mark.parametrize("limit_ms", [None, LIMIT_MS])
def test_a_tier_that_cools_is_passed_over_for_as_long(limit_ms: float | None) -> None:
    tiers = Tiers("a")
    tiers.serve_well("a")
    tiers.tell("a", Outcome(instance="a", kind="saturated", status=429, retry_after_ms=2_000))
    assert tiers.who(limit_ms=limit_ms) == ["p"]
    tiers.now_ms += 2_000
    assert tiers.who(limit_ms=limit_ms) == ["a"]


def test_a_retry_may_go_to_the_next_tier_and_the_third_attempt_does() -> None:
    tiers = Tiers("a", "b", "c", "d")
    tiers.serve_well("a", "b", "c", "d")
    assert tiers.who("a") == ["b", "c", "d", "p"]
    assert tiers.candidates("a", "b") == (["p"], ["tried", "tried", "passed_over", "passed_over", ""])
    assert tiers.who("a", "b", "p") == ["c", "d"], "the usable set never collapses"


def test_when_the_reserve_fails_as_well_everybody_is_asked() -> None:
    tiers = Tiers("a", "b")
    for name in ("a", "b", "p"):
        tiers.fails(name)
    assert tiers.candidates() == (["a", "b", "p"], ["", "", ""])


def test_a_failing_tier_is_probed_by_a_share_of_requests_one_at_a_time() -> None:
    tiers = Tiers("a", "b")
    tiers.fails("a")
    tiers.fails("b")
    tiers.now_ms += 1_000 * PROBE_AFTER_S - 1_000
    assert tiers.who(probing=True) == ["p"], "not at once"
    tiers.now_ms += 1_000
    assert tiers.who(probing=False) == ["p"]
    assert tiers.who(probing=True) == ["a"]
    assert tiers.who("a", probing=True) == ["p"], "its retry probes nobody"
    tiers.awaiting["a"] = 1
    assert tiers.who(probing=True) == ["b"]
    tiers.awaiting["b"] = 1
    assert tiers.who(probing=True) == ["p"]
    tiers.awaiting = dict.fromkeys(tiers.awaiting, 0)
    tiers.fails("a")
    assert tiers.who(probing=True) == ["p"], "a probe that fails puts off the next, of any member"
    tiers.now_ms += 1_000 * PROBE_AFTER_S
    assert tiers.who(probing=True) == ["b"], "in turn"


def test_traffic_returns_with_the_successes() -> None:
    tiers = Tiers("a", "b")
    for _ in range(8):
        tiers.fails("a")
        tiers.fails("b")
    tiers.now_ms += 1_000 * PROBE_AFTER_S
    admitted = []
    for _ in range(8):
        tiers.answers("a")
        count = 0
        while tiers.who() == ["a"] and count < 20:
            count += 1
            tiers.awaiting["a"] = count
        admitted.append(count)
        tiers.awaiting["a"] = 0
    assert admitted[:7] == [2, 3, 4, 5, 6, 7, 8]
    tiers.answers("a")
    assert tiers.who() == ["a", "b"], "more answers than failures: the tier serves, and its policy tests the other"


def test_a_failure_on_the_way_back_ends_the_return() -> None:
    tiers = Tiers("a")
    for _ in range(4):
        tiers.fails("a")
    tiers.now_ms += 1_000 * PROBE_AFTER_S
    tiers.answers("a")
    assert tiers.who() == ["a"]
    tiers.fails("a")
    assert tiers.who() == ["p"]


def test_what_was_heard_last_counts_when_the_window_is_empty() -> None:
    tiers = Tiers("a")
    tiers.serve_well("a", seconds=3)
    for _ in range(3):
        tiers.now_ms += 100
        tiers.fails("a")
    tiers.now_ms += 3_600_000
    assert tiers.who() == ["p"], "no stampede onto who failed last"
    assert tiers.who(probing=True) == ["a"]
    tiers.answers("a")
    assert tiers.who() == ["a"]


def test_an_idle_tier_that_was_well_is_asked_first() -> None:
    tiers = Tiers("a")
    tiers.serve_well("a")
    tiers.now_ms += 3_600_000
    assert tiers.who() == ["a"]


# The limit, by what the fold makes of answers and ages.


def test_sustained_slowness_spills_within_a_second_and_returns_below_the_limit() -> None:
    tiers = Tiers("a")
    for _ in range(100):
        tiers.now_ms += 100
        tiers.answers("a", 100.0)
    assert tiers.who(limit_ms=600.0) == ["a"]
    slow = 0
    while tiers.who(limit_ms=600.0) == ["a"]:
        tiers.now_ms += 100
        tiers.answers("a", 1_500.0)
        slow += 1
    assert 1 < slow <= 5
    for _ in range(600):
        tiers.now_ms += 100
        tiers.answers("a", 1_500.0)
        assert tiers.who(limit_ms=600.0) == ["a", "p"], "for as long as it is slow, also once that is usual"
    good = 0
    while tiers.who(limit_ms=600.0) != ["a"]:
        tiers.now_ms += 1_000  # re-tests, while the other serves
        tiers.answers("a", 100.0)
        good += 1
    assert good <= 20


def test_ages_of_waiting_requests_spill_before_any_slow_answer() -> None:
    tiers = Tiers("a")
    tiers.serve_well("a")
    start_ms, sent = tiers.now_ms, [0]
    while tiers.who(limit_ms=LIMIT_MS) == ["a"]:
        tiers.now_ms += 50
        if (tiers.now_ms - start_ms) % 200 == 0:
            sent.append(tiers.now_ms - start_ms)
        for at_ms in sent:
            age_ms = tiers.now_ms - start_ms - at_ms
            if age_ms in (250, 500, 1_000, 2_000, 4_000, 8_000):
                tiers.tell("a", Overdue(instance="a", age_ms=age_ms, prompt_tokens=10))
    assert LIMIT_MS <= tiers.now_ms - start_ms <= LIMIT_MS + 1_500


def test_one_odd_slow_answer_of_a_healthy_engine_spills_nothing() -> None:
    tiers = Tiers("a")
    for _ in range(20):
        tiers.serve_well("a", seconds=2)
        tiers.answers("a", 1_500.0)
        assert tiers.who(limit_ms=600.0) == ["a"]
