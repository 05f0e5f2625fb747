"""Who may be chosen, and in which order reasons against it are waived."""

from itertools import combinations, product
from typing import Any

import pytest

from evenload.routing import InstanceView, Request, eligible
from evenload.routing.exclusion import DOUBT_AFTER_MS, RETEST_EVERY, WAIVED_FIRST, exclusion
from tests.routing.views import NOW_MS, view

COOLING: dict[str, Any] = {"cooling_until_ms": NOW_MS + 1, "cooling_cause": "saturated"}
QUOTA: dict[str, Any] = COOLING | {"cooling_cause": "quota"}
ANSWERED: dict[str, Any] = {"ok": [1] + [0] * 9, "ok_sum": 1}
OLD_MS = NOW_MS - DOUBT_AFTER_MS
TRIED = Request(tried=("a",))
LONG = Request(prompt_tokens=4096)
DUE = RETEST_EVERY - 1  # ordinal of a request that re-tests


def seen(name: str, at_ms: int | None = NOW_MS, **known: Any) -> InstanceView:
    """A view on a snapshot of that time."""
    made = view(name, **known)
    made.snapshot_ms = at_ms
    return made


def usable(views: list[InstanceView], request: Request | None = None) -> list[str]:
    indices, reasons = eligible(views, request or Request(), NOW_MS)
    assert all(bool(reason) != (index in indices) for index, reason in enumerate(reasons))
    return [views[index].instance for index in indices]


@pytest.mark.parametrize(
    ("known", "request_", "reason"),
    [
        ({}, Request(), ""),
        ({"left_ms": 5}, Request(), "left"),
        ({"ready": False}, Request(), "not_ready"),
        ({"draining": True}, Request(), "draining"),
        ({}, Request(tried=("a",)), "tried"),
        (COOLING, Request(prompt_tokens=4095), ""),
        (COOLING, Request(prompt_tokens=4096), "cooling_long_prompt"),
        (COOLING, TRIED, "busy"),
        (QUOTA, Request(), "quota"),
        (QUOTA, TRIED, "quota"),
        (QUOTA | {"draining": True}, Request(), "quota"),
        ({"ready": False}, TRIED, "tried_not_ready"),
        ({"ready": False} | COOLING, TRIED, "tried_not_ready"),
        ({"draining": True}, TRIED, "tried"),
        (COOLING | {"cooling_until_ms": NOW_MS}, Request(prompt_tokens=9999), ""),
    ],
)
def test_each_reason_has_its_name(known: dict[str, Any], request_: Request, reason: str) -> None:
    assert exclusion(view("a", **known), request_, NOW_MS) == reason


def test_only_the_excluded_are_left_out() -> None:
    views = [view("a", ready=False), view("b"), view("c", draining=True)]
    assert eligible(views, Request(), NOW_MS) == ([1], ["not_ready", "", "draining"])


def test_the_usable_set_never_collapses_while_a_member_is_there() -> None:
    """F22: everything excluded means that the mildest reason is waived."""
    views = [view("a", ready=False), view("b", draining=True), view("c", left_ms=1)]
    assert eligible(views, Request(), NOW_MS)[0] == [1]
    assert eligible([views[0], views[2]], Request(), NOW_MS)[0] == [0]
    assert eligible([views[2]], Request(), NOW_MS)[0] == []


def test_a_retry_may_return_to_the_only_instance() -> None:
    assert eligible([view("a")], Request(tried=("a",)), NOW_MS)[0] == [0]


# An instance of each rank, and the request that makes it one.
RANKS: list[tuple[str, Request, dict[str, Any]]] = [
    ("", Request(), {}),
    ("cooling_long_prompt", LONG, COOLING),
    ("draining", Request(), {"draining": True}),
    ("doubtful", Request(), {"ready": False, "at_ms": OLD_MS}),
    ("busy", TRIED, COOLING),
    ("not_ready", Request(), {"ready": False}),
    ("tried", TRIED, {}),
    ("quota", Request(), QUOTA),
    ("tried_not_ready", TRIED, {"ready": False}),
    ("left", Request(), {"left_ms": 1}),
]


def test_reasons_are_waived_from_the_mildest_to_the_gravest() -> None:
    assert [reason for reason, _, _ in RANKS] == ["", *WAIVED_FIRST, "left"]
    for (milder, first, mild), (graver, second, grave) in combinations(RANKS, 2):
        tried = tuple(name for name, of in (("a", first), ("b", second)) if of.tried)
        request = Request(tried=tried, prompt_tokens=max(first.prompt_tokens, second.prompt_tokens))
        views = [seen("a", **mild), seen("b", **grave)]
        reasons = [exclusion(one, request, NOW_MS) for one in views]
        assert reasons == [milder, graver]
        assert usable(views, request) == ["a"], reasons
        assert usable(views[::-1], request) == ["a"], reasons


@pytest.mark.parametrize("others", [{}, {"draining": True}, COOLING])
def test_a_retry_asks_who_is_said_to_be_not_ready_before_who_has_just_failed(others: dict[str, Any]) -> None:
    """Whatever else is known of either: the collector may be wrong, the failure was seen."""
    not_ready: dict[str, Any] = {"ready": False}
    assert usable([view("a"), view("b", **not_ready)], TRIED) == ["b"]
    assert usable([view("a"), view("b", **not_ready, **others)], TRIED) == ["b"]
    assert usable([view("a", **not_ready), view("b", **not_ready, **others)], TRIED) == ["b"]
    assert usable([view("a"), view("b", **not_ready)], Request(tried=("a", "b"))) == ["a"], "both failed: the ready one"


def test_one_that_refused_for_load_is_asked_again_before_one_that_is_not_ready() -> None:
    assert usable([view("a", **COOLING), view("b", ready=False)], TRIED) == ["a"]
    assert usable([view("a", **COOLING), seen("b", OLD_MS, ready=False)], TRIED) == ["b"], "but not before a doubt"


def test_whatever_is_known_of_three_instances_somebody_who_was_not_tried_is_asked_first() -> None:
    states: list[dict[str, Any]] = [
        {"ready": ready, "draining": draining, **cooling, **left, "at_ms": at_ms}
        for ready, draining, cooling, left, at_ms in product(
            (True, False), (True, False), ({}, COOLING, QUOTA), ({}, {"left_ms": 1}), (NOW_MS, OLD_MS)
        )
    ]
    for first, second in product(states, states):
        for tried in ((), ("a",), ("b",), ("a", "b"), ("a", "b", "c")):
            views = [seen("a", **first), seen("b", **second), view("c", ready=False)]
            chosen = usable(views, Request(tried=tried, prompt_tokens=5_000))
            assert chosen, "the usable set never collapses"
            members = {one.instance: one.state for one in views if one.state.left_ms is None}
            assert set(chosen) <= set(members)
            refusing = {name for name, state in members.items() if state.cooling_until_ms > NOW_MS}
            if set(members) - set(tried) - refusing:
                assert not set(chosen) & (set(tried) - refusing), (first, second, tried)


def test_not_ready_by_old_word_is_a_doubt_from_ten_seconds_on_and_only_with_a_snapshot() -> None:
    for at_ms, reason in ((None, "not_ready"), (OLD_MS + 1, "not_ready"), (OLD_MS, "doubtful")):
        assert exclusion(seen("a", at_ms, ready=False), Request(), NOW_MS) == reason
    assert exclusion(seen("a", OLD_MS), Request(), NOW_MS) == "", "of what was ready nothing is doubted"


def test_one_that_answers_again_is_ready_until_it_says_nothing_for_ten_seconds() -> None:
    assert exclusion(seen("a", OLD_MS, ready=False, **ANSWERED), Request(), NOW_MS) == ""
    assert exclusion(seen("a", OLD_MS, ready=False, **ANSWERED), TRIED, NOW_MS) == "tried"
    assert exclusion(seen("a", NOW_MS, ready=False, **ANSWERED), Request(), NOW_MS) == "not_ready", "a fresh word binds"


def test_each_fiftieth_request_re_tests_the_doubtful_in_turn_and_one_at_a_time() -> None:
    views = [view("a"), seen("b", OLD_MS, ready=False), seen("c", OLD_MS, ready=False)]
    asked = [usable(views, Request(ordinal=ordinal)) for ordinal in range(200)]
    assert [one for one in asked if one != ["a"]] == [["c"], ["b"], ["c"], ["b"]]
    assert asked[DUE] == ["c"]
    assert eligible(views, Request(ordinal=DUE), NOW_MS)[1] == ["retest", "doubtful", ""]
    views[2].awaiting = 1
    assert usable(views, Request(ordinal=DUE)) == ["a"], "a question is open"
    views[2].awaiting = 0
    views[2].state.draining = views[1].state.draining = True
    assert usable(views, Request(ordinal=DUE)) == ["a"], "who is to leave is not re-tested"


def test_neither_a_retry_nor_a_fresh_word_is_a_re_test() -> None:
    views = [view("a"), view("b"), seen("c", OLD_MS, ready=False)]
    assert usable(views, Request(ordinal=DUE, tried=("a",))) == ["b"]
    assert usable([view("a"), seen("c", ready=False)], Request(ordinal=DUE)) == ["a"]


def test_the_doubtful_are_asked_when_those_that_are_ready_fail() -> None:
    assert usable([view("a"), seen("b", OLD_MS, ready=False)], TRIED) == ["b"]
    assert usable([view("a"), seen("b", OLD_MS, ready=False), view("c", ready=False)], TRIED) == ["b"]
    assert usable([view("a"), view("c", draining=True), seen("b", OLD_MS, ready=False)], TRIED) == ["c"]
