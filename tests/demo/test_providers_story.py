"""The figures of the providers' story, on runs made by hand: what is promised holds only where it is so."""

import math
from random import Random

import pytest

from evenload.demo.checks import Run
from evenload.demo.load import Result
from evenload.demo.load_client import Outcome
from evenload.demo.providers_story import (
    BACK_S_MAX,
    FULL,
    QUICK,
    RATE_RPS,
    Pace,
    figures,
    judge,
    script,
    workload,
)
from evenload.demo.story import SLOW_ENGINE, Mark, Until

NAMES = tuple(f"provider-{number}" for number in range(6))
SLOW = NAMES[SLOW_ENGINE]
MARKS = (Mark("warm_up", 0, 15), Mark("slow", 15, 45), Mark("healed", 45, 60), Mark("back", 60, 80))


def run_of(*, evaded_s: float = 0.6, leak: float = 0.005, back_s: float = 8.0, overshoot: float = 1.0) -> Run:
    """A run in which the slow provider gets what the arguments say."""
    rng = Random(1)
    results = []
    for number in range(int(80 * RATE_RPS)):
        at_s = number / RATE_RPS
        fair = 1 / 6
        if 15 + evaded_s <= at_s < 45:
            fair = leak
        elif 45 <= at_s < 45 + back_s:
            fair = 0.01
        elif at_s >= 45 + back_s:
            fair *= overshoot
        name = SLOW if rng.random() < fair else rng.choice([one for one in NAMES if one != SLOW])
        slow = name == SLOW and 15 <= at_s < 45
        ttft_ms = 3500.0 if slow else rng.lognormvariate(math.log(200), 0.35)
        results.append(Result(at_s, ttft_ms, ttft_ms + 30, 200, Outcome.OK, "r", name, 2))
    return Run(results, MARKS, (), NAMES, ("r",))


def failed(run: Run) -> list[str]:
    return [check.key for check in judge(figures(run)) if not check.held]


def test_a_good_run_holds_and_its_figures_are_what_was_put_in() -> None:
    found = figures(run_of())
    assert failed(run_of()) == []
    assert found.share_before == pytest.approx(1 / 6, abs=0.02)
    assert found.healthy_p99_ms == pytest.approx(450, rel=0.15)
    assert 500 <= found.evaded_ms <= 600
    assert found.shifted == pytest.approx(0.97, abs=0.02)
    assert 8 <= found.back_s <= 11


@pytest.mark.parametrize(
    ("run", "broken"),
    [
        (run_of(leak=0.012), "shifted"),
        (run_of(evaded_s=1.6), "evaded"),
        (run_of(evaded_s=30), "evaded"),
        (run_of(back_s=BACK_S_MAX + 1), "back"),
        (run_of(back_s=40), "back"),
        (run_of(overshoot=3.0), "graceful"),
    ],
)
def test_each_promise_can_be_broken(run: Run, broken: str) -> None:
    assert broken in failed(run)


def test_a_failed_request_breaks_the_story() -> None:
    run = run_of()
    results = [*run.results, Result(20.0, None, 5.0, 502, Outcome.HTTP_ERROR, "r", None, 0)]
    assert failed(Run(results, MARKS, (), NAMES, ("r",))) == ["nothing_lost"]


def test_a_machine_that_does_not_keep_up_says_so() -> None:
    run = run_of()
    late = [Result(r.at_s, (r.ttft_ms or 0) + 900, 1, 200, Outcome.OK, "r", r.instance, 2) for r in run.results]
    assert "kept_up" in failed(Run(late, MARKS, (), NAMES, ("r",)))


def test_what_never_came_back_is_null_in_the_document() -> None:
    document = figures(run_of(back_s=40)).document()
    assert document["back_s"] is None
    assert document["afterwards_p99_ms"] is None


@pytest.mark.parametrize("pace", [FULL, QUICK])
def test_the_script_waits_for_the_share_and_the_load_lasts_as_long(pace: Pace) -> None:
    steps = script(pace)
    assert [step.key for step in steps] == [mark.key for mark in MARKS]
    assert steps[2].until is Until.SHARE_BACK
    trace = workload(30.0, 1)
    assert len(trace.arrivals) / 30.0 == pytest.approx(RATE_RPS, rel=0.06)
    assert trace.arrivals != workload(30.0, 2).arrivals
