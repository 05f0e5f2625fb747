from typing import Any

import pytest

from evenload.routing import Request, eligible
from evenload.routing.exclusion import exclusion
from tests.routing.views import NOW_MS, view

COOLING = {"cooling_until_ms": NOW_MS + 1, "cooling_cause": "saturated"}


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
        (COOLING | {"cooling_cause": "quota"}, Request(), "quota"),
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
