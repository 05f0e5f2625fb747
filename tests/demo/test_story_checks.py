import math
from dataclasses import replace
from random import Random

import pytest

from evenload.demo.checks import Check, Run, judge, lost, share_back_s, window_shares
from evenload.demo.load import Result
from evenload.demo.load_client import Outcome
from evenload.demo.observe import RouterView, Sample, attempt_shares, attempts, router_view
from evenload.demo.story import FULL, QUICK, SATURATED_ENGINE, SLOW_ENGINE, Action, Mark, Pace, baseline, story
from evenload.demo.summary import Summary, figures, markdown

ENGINES = [f"engine-{n}" for n in range(6)]
ROUTERS = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
RATE_RPS = 20.0
MARKS = [
    Mark("warm_up", 0, 10),
    Mark("slow", 10, 40),
    Mark("healed", 40, 55),
    Mark("saturated_503", 55, 65),
    Mark("saturated_429", 65, 75),
    Mark("saturated_stream", 75, 85),
    Mark("recovered", 85, 90),
    Mark("router_down", 90, 98),
    Mark("router_back", 98, 104),
    Mark("broker_down", 104, 112),
    Mark("broker_starts", 112, 117),
    Mark("broker_back", 117, 122),
]


def result(at_s: float, instance: str | None, *, router: int = 0, ttft_ms: float = 200.0) -> Result:
    return Result(at_s, ttft_ms, ttft_ms + 1000, 200, Outcome.OK, ROUTERS[router], instance, 50)


def failed(at_s: float, outcome: Outcome, *, router: int, duration_ms: float = 1000.0) -> Result:
    return Result(at_s, None, duration_ms, 200, outcome, ROUTERS[router], ENGINES[0], 0)


def good_results() -> list[Result]:
    """The sick engine gets 1 %, and its whole share from 6 s after healing; evenly spread otherwise."""
    rng = Random(7)
    others = [name for name in ENGINES if name != ENGINES[SLOW_ENGINE]]
    found = []
    for number in range(int(122 * RATE_RPS)):
        at_s = number / RATE_RPS
        if 10.3 <= at_s < 46:
            name = ENGINES[SLOW_ENGINE] if number % 100 == 0 else others[rng.randrange(5)]
        else:
            name = ENGINES[number % 6]
        router = 0 if 90 <= at_s < 98 else number % 2
        found.append(result(at_s, name, router=router, ttft_ms=3500 if name == ENGINES[1] and at_s < 40 else 200))
    return found


def router(*, view: str = "fresh", unsent_ms: float = 100.0, lost: float = 0.0, count: float = 0.0) -> RouterView:
    choices = {(name, "cheaper"): count for name in ENGINES}
    return RouterView(
        view, 100.0, {}, choices, {"events_lost": lost, "oldest_unsent_ms": unsent_ms, "events_buffered": 9}
    )


def good_samples() -> list[Sample]:
    found = []
    for number in range(245):
        at_s = number / 2
        stale = 109 <= at_s < 119
        view = router(view="stale" if stale else "fresh", unsent_ms=9000 if stale else 100, count=float(number))
        found.append(Sample(at_s, (view, None if 90 <= at_s < 98 else view)))
    return found


def good_run() -> Run:
    return Run(good_results(), MARKS, good_samples(), ENGINES, ROUTERS)


def verdicts(run: Run) -> dict[str, bool]:
    return {check.key: check.held for check in judge(run)}


def check(run: Run, key: str) -> Check:
    return next(c for c in judge(run) if c.key == key)


def test_a_good_run_keeps_every_promise() -> None:
    assert all(verdicts(good_run()).values()), judge(good_run())


def test_a_stream_on_the_killed_router_is_excused_and_told() -> None:
    run = good_run()
    run = replace(run, results=[*run.results, failed(88.5, Outcome.CUT, router=1, duration_ms=1600)])
    assert lost(run) == []
    assert "besides 1 streams" in check(run, "no_failures").figure
    assert verdicts(run)["no_failures"]


@pytest.mark.parametrize(
    "bad",
    [
        failed(88.5, Outcome.CUT, router=0, duration_ms=1600),  # the other router
        failed(80.0, Outcome.CUT, router=1, duration_ms=1600),  # long before the kill
        failed(93.0, Outcome.CUT, router=1),  # after it
        failed(88.5, Outcome.HTTP_ERROR, router=1, duration_ms=1600),  # not a cut
        failed(60.0, Outcome.STREAM_ERROR, router=0),
    ],
)
def test_any_other_failure_breaks_the_story(bad: Result) -> None:
    run = replace(good_run(), results=[*good_results(), bad])
    assert not verdicts(run)["no_failures"]
    assert lost(run) == [bad]


def test_a_failure_while_an_engine_is_saturated_breaks_that_promise_too() -> None:
    run = replace(good_run(), results=[*good_results(), failed(60.0, Outcome.STREAM_ERROR, router=0)])
    assert not verdicts(run)["saturation_hidden"]


def test_arrivals_that_were_not_sent_are_failures() -> None:
    assert not verdicts(replace(good_run(), skipped=1))["no_failures"]


def test_no_results_prove_nothing() -> None:
    held = verdicts(replace(good_run(), results=[], samples=[]))
    assert not any(held.values()), held


def test_one_bad_window_breaks_the_share_of_the_sick_engine() -> None:
    worse = [
        replace(r, instance=ENGINES[SLOW_ENGINE]) if 30 <= r.at_s < 30.3 else r for r in good_results()
    ]  # 6 of the 100 requests of a window
    assert not verdicts(replace(good_run(), results=worse))["sick_share"]


def test_what_happens_in_the_first_two_seconds_of_a_fault_does_not_count() -> None:
    early = [replace(r, instance=ENGINES[SLOW_ENGINE]) if 10 <= r.at_s < 12 else r for r in good_results()]
    assert verdicts(replace(good_run(), results=early))["sick_share"]


def test_the_time_until_the_share_is_back_ends_with_the_first_window_above_the_bound() -> None:
    back_s = share_back_s(good_run())
    assert back_s is not None
    assert 8 <= back_s <= 11  # from 6 s on it has a sixth, so most of a window of 5 s must have passed


def test_a_share_that_stays_low_for_30_s_breaks_the_story() -> None:
    late = [
        replace(r, instance=ENGINES[0]) if r.instance == ENGINES[SLOW_ENGINE] and 40 <= r.at_s < 71 else r
        for r in good_results()
    ]
    run = replace(good_run(), results=late)
    assert share_back_s(run) is None
    assert not verdicts(run)["share_back"]


def test_lost_events_stale_views_and_silent_routers_break_the_catch_up() -> None:
    samples = good_samples()
    last = samples[-1].at_s
    assert not verdicts(replace(good_run(), samples=[*samples, Sample(last, (router(lost=1), router()))]))["caught_up"]
    assert not verdicts(replace(good_run(), samples=[*samples, Sample(last, (router(), None))]))["caught_up"]
    stale = [s if s.at_s < 109 else Sample(s.at_s, (router(view="stale"), router())) for s in samples]
    assert not verdicts(replace(good_run(), samples=stale))["caught_up"]


def test_a_killed_router_that_never_serves_again_breaks_the_story() -> None:
    never = [replace(r, router=ROUTERS[0]) if r.at_s >= 98 else r for r in good_results()]
    assert not verdicts(replace(good_run(), results=never))["router_killed"]


def test_windows_lie_inside_the_span_and_empty_ones_are_left_out() -> None:
    run = Run([result(3.0, "a")], [], [], ["a"], ROUTERS)
    assert window_shares(run, "a", 0.0, 20.0) == [(5.0 + step / 2, 1.0) for step in range(7)]
    assert window_shares(run, "a", 0.0, 4.9) == []


def test_counters_that_start_again_with_their_router_are_not_negative() -> None:
    samples = [
        Sample(0.0, (router(count=10), router(count=5))),
        Sample(1.0, (router(count=12), None)),
        Sample(2.0, (router(count=14), router(count=1))),
    ]
    assert attempts(samples, 0.0, 2.0) == {(name, "cheaper"): 5.0 for name in ENGINES}
    assert attempts(samples, 0.0, 1.0)[ENGINES[0], "cheaper"] == 2.0
    assert attempt_shares(samples, 0.0, 2.0)[ENGINES[0]] == pytest.approx(1 / 6)
    assert attempt_shares([], 0.0, 2.0) == {}


def test_a_routers_pages_are_read() -> None:
    fleet = {
        "view": "fresh",
        "snapshot_age_ms": 80,
        "pools": [
            {
                "instances": [
                    {
                        "instance": "engine-0",
                        "score": 97.5,
                        "terms": {"ttft": 0.1, "error": 0.0, "queue": 0.2},
                        "in_flight": 3,
                        "ttft_ms": None,
                    }
                ]
            }
        ],
    }
    metrics = (
        "# HELP evenload_router_choices_total x\n"
        'evenload_router_choices_total{instance="engine-0",pool="demo",reason="probe"} 2.0\n'
        'evenload_router_choices_created{instance="engine-0",pool="demo",reason="probe"} 1.7e9\n'
        'evenload_router_telemetry{state="events_lost"} 0.0\n'
    )
    view = router_view(fleet, metrics)
    assert view.engines["engine-0"].score == 97.5
    assert view.choices == {("engine-0", "probe"): 2.0}
    assert view.telemetry == {"events_lost": 0.0}
    with pytest.raises(ValueError, match="snapshot_age_ms"):
        router_view({"view": "fresh", "pools": []}, "")


def test_figures_and_markdown_show_lost_requests_as_failed_not_as_fast() -> None:
    run = replace(good_run(), results=[*good_results(), *[failed(20.0, Outcome.TIMEOUT, router=0)] * 30])
    row = figures("evenload", run)
    assert row.lost == 30
    assert row.slow_p50_ms == 200.0
    assert row.slow_p99_ms is None
    summary = Summary(judge(run), [row], ["a note"], 100.0)
    assert not summary.held
    text = markdown(summary)
    assert "| evenload | 200 / failed | failed |" in text
    assert "NOT held" in text
    assert "- a note" in text
    assert not any(math.isnan(v) for v in vars_of(summary.document()["figures"][0]))


def vars_of(row: dict[str, object]) -> list[float]:
    return [value for value in row.values() if isinstance(value, float)]


@pytest.mark.parametrize("pace", [FULL, QUICK])
def test_every_fault_of_a_script_is_healed_and_baselines_replay_the_same_ones(pace: Pace) -> None:
    for script in (story(pace), baseline(pace)):
        sick: set[int | None] = set()
        for step in script:
            if step.action is Action.FAULT:
                sick.add(step.engine)
            elif step.action is Action.HEAL:
                sick.remove(step.engine)
        assert not sick
    faults = [[(s.key, s.fault, s.seconds) for s in script(pace) if s.fault] for script in (story, baseline)]
    assert faults[0] == faults[1]
    assert {step.engine for step in story(pace) if step.fault} == {SLOW_ENGINE, SATURATED_ENGINE}


def test_keys_of_steps_are_unique() -> None:
    keys = [step.key for step in story()]
    assert len(keys) == len(set(keys))
