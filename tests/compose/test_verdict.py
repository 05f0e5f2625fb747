from dataclasses import replace

import pytest

from evenload.demo.load_client import Outcome
from tools.compose_demo.verdict import Check, Kill, Request, judge, judge_audit, phases

ROUTER = Kill("router-2", "router-2", begin_s=10.0, end_s=10.4, recovered_s=14.0)
SCORER = Kill("scorer", "", begin_s=30.0, end_s=30.4, recovered_s=39.0)
EARLY = Request(2.0, 5.0, Outcome.OK, 200, "router-1", 100.0)
CUT = Request(8.0, 10.3, Outcome.CUT, 200, "router-2", 100.0)
LATE = Request(40.0, 44.0, Outcome.OK, 200, "router-3", 100.0)
GOOD = [EARLY, CUT, LATE]


def failing(requests: list[Request], router: Kill = ROUTER, scorer: Kill = SCORER) -> list[Check]:
    return [check for check in judge(requests, router, scorer) if not check.held]


def test_streams_that_were_on_the_killed_router_may_be_cut() -> None:
    assert failing(GOOD) == []


@pytest.mark.parametrize(
    "request_",
    [
        replace(CUT, router="router-1"),
        replace(CUT, router=None, outcome=Outcome.HTTP_ERROR, status=503),
        replace(CUT, end_s=9.9),
        replace(CUT, start_s=10.5, end_s=11.0),
        replace(CUT, end_s=60.0),
    ],
    ids=["another router", "no router", "ended before the kill", "began after the kill", "ended long after"],
)
def test_any_other_failure_breaks_the_promise_and_is_told(request_: Request) -> None:
    checks = failing([*GOOD, request_])
    assert [check.promise for check in checks] == ["no request fails but those that were on the killed router"]
    assert f"1 of them elsewhere\n      {request_.outcome}" in checks[0].figure


def test_a_kill_that_met_no_request_shows_nothing() -> None:
    assert [check.figure for check in failing([EARLY, LATE])] == ["0 were on it"]


def test_no_requests_at_all_hold_nothing() -> None:
    assert len(failing([])) == 3


def test_a_router_that_stays_away_or_snapshots_that_stay_stale_break_the_promise() -> None:
    assert [c.figure for c in failing(GOOD, replace(ROUTER, recovered_s=None))] == ["not within 60 s"]
    assert [c.figure for c in failing(GOOD, scorer=replace(SCORER, recovered_s=90.0))] == ["after 60.0 s (limit 45 s)"]


def test_a_failed_request_never_looks_fast() -> None:
    before, after_router, after_scorer = phases(GOOD, ROUTER, SCORER)
    assert "p50    100 ms, p95    inf ms" in before
    assert "0 requests" in after_router
    assert "p95    100 ms" in after_scorer


AUDIT = {
    "exit_code": 0,
    "counts": {"snapshot verified": 40, "decision verified": 30, "decision unverifiable": 2},
    "unverifiable": {"decision: tail died": 2},
    "gaps": [],
    "first_difference": None,
}


def test_what_died_with_the_killed_router_is_told_and_not_held_against_the_audit() -> None:
    check = judge_audit(AUDIT)
    assert (check.held, check.figure) == (True, "40 snapshots and 30 decisions the same, 2 not verifiable")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"exit_code": 1, "first_difference": {"where": "offset 7"}}, "offset 7"),
        ({"exit_code": 2, "gaps": ["partition 1: 5 to 9"]}, "partition 1"),
        ({"counts": {"snapshot verified": 40}}, "0 decisions"),
    ],
    ids=["a difference", "a gap", "nothing verified"],
)
def test_an_audit_that_finds_something_or_sees_nothing_breaks_the_promise(change: dict[str, object], told: str) -> None:
    check = judge_audit(AUDIT | change)
    assert not check.held
    assert told in check.figure
