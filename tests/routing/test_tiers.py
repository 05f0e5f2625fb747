"""Priorities: the reserve joins when the first tier is slow, serves when that is busy, fails or is not usable."""

from typing import Any

import pytest

from evenload.routing import InstanceView, Request, eligible
from tests.routing.views import NOW_MS, view

LIMIT_MS = 1_000.0
KNOWN = {"fit_weight": 100.0, "base_ms": 100.0, "token_ms": 0.5}
COOLING: dict[str, Any] = {"cooling_until_ms": NOW_MS + 1, "cooling_cause": "engine_busy"}


def engine(name: str, awaiting_tokens: int = 0, **known: Any) -> InstanceView:
    made = view(name, **{**KNOWN, **known})
    made.awaiting_tokens = awaiting_tokens
    return made


def reserve(name: str, priority: int = 1, **known: Any) -> InstanceView:
    made = view(name, **{**KNOWN, **known})
    made.priority = priority
    return made


def chosen(*views: InstanceView, limit_ms: float | None = LIMIT_MS, request: Request | None = None) -> list[str]:
    indices, reasons = eligible(views, request or Request(prompt_tokens=10), NOW_MS, limit_ms)
    assert all(bool(reason) != (index in indices) for index, reason in enumerate(reasons))
    return [views[index].instance for index in indices]


def test_the_reserve_waits_while_one_engine_is_quick_enough() -> None:
    views = [engine("a", 50_000), engine("b"), reserve("p")]
    assert chosen(*views) == ["a", "b"]
    assert eligible(views, Request(), NOW_MS, LIMIT_MS)[1] == ["", "", "reserve"]


@pytest.mark.parametrize(
    "late",
    [
        engine("a", 3_000),
        engine("a", slowness=20.0),
    ],
    ids=["queued work", "it became slow"],
)
def test_the_reserve_joins_when_the_best_engine_is_over_the_limit(late: InstanceView) -> None:
    assert chosen(late, reserve("p")) == ["a", "p"]
    assert chosen(late, reserve("p"), limit_ms=None) == ["a"], "without a limit it is for outages"


def test_the_reserve_serves_alone_when_no_engine_is_usable() -> None:
    states: list[dict[str, Any]] = [{"ready": False}, {"draining": True}, {"left_ms": 1}]
    for gone in states:
        assert chosen(engine("a", **gone), reserve("p"), limit_ms=None) == ["p"]
    asked = Request(prompt_tokens=10, tried=("a",))
    assert chosen(engine("a"), reserve("p"), limit_ms=None, request=asked) == ["p"], "a retry goes on there"


def test_tiers_join_one_after_the_other() -> None:
    first, second, third = engine("a", 50_000), reserve("b", 1), reserve("c", 7)
    assert chosen(first, second, third) == ["a", "b"]
    assert chosen(first, reserve("b", 1, slowness=50.0), third) == ["a", "b", "c"]


def test_what_is_not_known_yet_is_not_over_the_limit() -> None:
    assert chosen(engine("a", 90_000, fit_weight=0.0), reserve("p")) == ["a"]


def test_the_age_of_waiting_requests_counts_before_anything_has_been_learned() -> None:
    waiting: dict[str, Any] = {"fit_weight": 0.0, "live_ttft_ms": 4_000.0}
    assert chosen(engine("a", **waiting), reserve("p")) == ["a", "p"]
    assert chosen(engine("a", **waiting), engine("b"), reserve("p")) == ["a", "b"]


def test_the_limit_is_held_against_what_was_seen_not_against_a_part_of_it() -> None:
    usual: dict[str, Any] = {"base_ms": 20.0, "token_ms": 0.0, "slowness": 50.0}  # (5,900 + 100) / (20 + 100)
    assert chosen(engine("a", **usual), reserve("p"), limit_ms=5_800.0) == ["a", "p"]
    assert chosen(engine("a", **usual), reserve("p"), limit_ms=6_000.0) == ["a"]


def test_beyond_what_a_ratio_can_say_the_ttft_that_was_seen_counts() -> None:
    usual: dict[str, Any] = {"base_ms": 1.0, "token_ms": 0.0, "slowness": 99.0}
    assert chosen(engine("a", live_ttft_ms=60_000.0, **usual), reserve("p"), limit_ms=30_000.0) == ["a", "p"]
    assert chosen(engine("a", live_ttft_ms=9_000.0, **usual), reserve("p"), limit_ms=30_000.0) == ["a"]


def test_noise_in_the_slowness_spills_nothing() -> None:
    assert chosen(engine("a", 1_700, slowness=1.4), reserve("p")) == ["a"]


def test_a_reserve_that_is_out_of_quota_leaves_the_engines_as_they_are() -> None:
    assert chosen(engine("a", 50_000), reserve("p", **COOLING | {"cooling_cause": "quota"})) == ["a"]
