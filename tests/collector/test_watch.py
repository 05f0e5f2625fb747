"""What polls mean, without any poll."""

from typing import Any

import pytest

from evenload.collector.engines.page import Page
from evenload.collector.watch import Watch
from evenload.schemas import EngineGauges, Event, InstanceState, Membership

IDLE = Page(0, 0, 0.0)
BUSY = Page(5, 2, 0.5)


def changes(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.change, event.cause) for event in events if isinstance(event, Membership)]


def ready(watch: Watch, now_ms: float) -> list[Event]:
    """What two good answers bring: of `/health`, and of `/v1/models`."""
    return watch.on_health(200, now_ms) + watch.on_models(True, now_ms)


def believed(*, ready: bool = True, **fields: Any) -> InstanceState:
    return InstanceState(instance="gpu-1", ready=ready, **fields)


def test_gauges_are_said_when_they_change_and_at_least_once_a_second() -> None:
    watch = Watch("gpu-1", 250)
    said = [bool(watch.on_page(IDLE, now_ms)) for now_ms in range(0, 2_250, 250)]
    assert said == [True, False, False, False, True, False, False, False, True]
    assert watch.on_page(BUSY, 2_250) == [EngineGauges(instance="gpu-1", running=5, waiting=2, kv_usage=0.5)]


def test_a_refused_connection_makes_the_instance_not_ready_at_once_and_is_said_once() -> None:
    watch = Watch("gpu-1", 250)
    assert changes(ready(watch, 0)) == [("ready", "")]
    assert changes(watch.on_failure("refused", 250)) == [("not_ready", "refused")]
    assert watch.on_failure("refused", 500) == []
    assert watch.ready is False


def test_an_instance_that_never_answered_is_not_ready_when_refused() -> None:
    assert changes(Watch("gpu-1", 250).on_failure("refused", 0)) == [("not_ready", "refused")]


@pytest.mark.parametrize("status", [301, 302, 401, 403, 404, 405, 429, 500, 501])
def test_an_engine_whose_health_says_nothing_to_us_is_ready_again_after_its_restart(status: int) -> None:
    watch = Watch("gpu-1", 250)
    watch.on_health(status, 0)
    watch.on_models(None, 0)
    assert changes(watch.on_failure("refused", 250)) == [("not_ready", "refused")]
    assert watch.on_health(502, 500) == []
    assert not watch.wants_models()
    watch.on_health(status, 750)
    assert watch.wants_models()
    assert changes(watch.on_models(None, 750)) == [("ready", "")]


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_gateway_that_finds_nobody_and_a_fault_after_a_503_make_nobody_ready(status: int) -> None:
    watch = Watch("gpu-1", 250)
    assert changes(watch.on_health(503, 0)) == [("not_ready", "health_503")]
    for now_ms in range(250, 60_000, 250):
        assert watch.on_health(status, now_ms) == []
    assert watch.ready is False


def test_a_page_that_fails_after_a_refusal_does_not_hide_that_the_model_is_not_loaded() -> None:
    watch = Watch("gpu-1", 250)
    watch.on_failure("refused", 0)
    assert watch.on_health(500, 250) == []
    assert watch.on_models(False, 250) == []
    assert watch.ready is False
    assert changes(ready(watch, 500)) == [("ready", "")]


def test_silence_alone_never_removes_an_instance() -> None:
    watch = Watch("gpu-1", 250)
    ready(watch, 0)
    for cause in ("timeout", "cut", "unreachable", "protocol", "status"):
        for now_ms in range(0, 60_000, 1_000):
            assert watch.on_failure(cause, now_ms) == []
    assert watch.ready is True


def test_health_503_makes_it_not_ready_and_200_ready_again() -> None:
    watch = Watch("gpu-1", 250)
    assert changes(ready(watch, 0)) == [("ready", "")]
    assert changes(watch.on_health(503, 1)) == [("not_ready", "health_503")]
    assert watch.on_health(500, 2) == []
    assert changes(ready(watch, 3)) == [("ready", "")]


def test_a_restart_is_not_forgotten_while_the_new_process_is_not_healthy_yet() -> None:
    watch = Watch("gpu-1", 250)
    ready(watch, 0)
    assert changes(watch.on_failure("refused", 1)) == [("not_ready", "refused")]
    assert watch.on_health(503, 2) == []
    assert changes(ready(watch, 3)) == [("ready", "")]


def test_health_is_asked_always_until_ready_and_then_once_a_second() -> None:
    watch = Watch("gpu-1", 250)
    assert watch.wants_health(0)
    ready(watch, 0)
    assert [watch.wants_health(now_ms) for now_ms in (250, 500, 999, 1_000)] == [False, False, False, True]
    watch.on_failure("refused", 1_000)
    assert watch.wants_health(1_001)


def test_pauses_double_with_each_failure_up_to_a_bound_and_end_with_success() -> None:
    watch = Watch("gpu-1", 250)
    pauses = []
    for _ in range(6):
        pauses.append(watch.pause_ms())
        watch.on_failure("timeout", 0)
    assert pauses == [250, 500, 1_000, 2_000, 2_000, 2_000]
    watch.on_page(IDLE, 0)
    assert watch.pause_ms() == 250
    slow = Watch("gpu-1", 5_000)
    slow.on_failure("timeout", 0)
    assert slow.pause_ms() == 5_000


def test_what_the_scorer_does_not_believe_is_said_again_after_some_seconds() -> None:
    watch = Watch("gpu-1", 250)
    assert watch.on_snapshot(believed(), 0) == []
    watch.on_failure("refused", 1_000)
    assert watch.on_snapshot(believed(), 2_000) == []
    assert changes(watch.on_snapshot(believed(), 4_000)) == [("not_ready", "refused")]
    assert watch.on_snapshot(believed(), 5_000) == []
    assert watch.on_snapshot(believed(ready=False), 9_000) == []


def test_an_engine_that_still_loads_its_model_is_not_ready() -> None:
    """F44: `/health` answers before the model is there."""
    watch = Watch("gpu-1", 250)
    watch.on_failure("refused", 0)
    assert watch.on_health(200, 250) == []
    assert watch.wants_models()
    assert watch.on_models(False, 250) == []
    assert (watch.ready, watch.wants_models()) == (False, True)
    assert changes(ready(watch, 500)) == [("ready", "")]
    assert not watch.wants_models()


def test_a_list_of_models_that_never_comes_keeps_nobody_out() -> None:
    watch = Watch("gpu-1", 250)
    watch.on_failure("refused", 0)
    watch.on_health(200, 250)
    assert [changes(watch.on_no_models(now_ms)) for now_ms in (250, 500, 750)] == [[], [], [("ready", "")]]


def test_a_new_process_is_asked_everything_anew_and_stays_ready_meanwhile() -> None:
    watch = Watch("gpu-1", 250)
    watch.on_page(Page(0, 0, 0.0, started_s=1.0), 0)
    ready(watch, 0)
    watch.on_page(Page(0, 0, 0.0, started_s=2.0), 250)
    assert watch.ready
    assert watch.wants_health(250)
    assert watch.on_health(200, 250) == []
    assert changes(watch.on_models(False, 250)) == [("not_ready", "model_not_loaded")]


def test_an_engine_that_is_put_to_sleep_is_not_ready_until_it_is_woken() -> None:
    watch = Watch("gpu-1", 250)
    ready(watch, 0)
    assert changes(watch.on_page(Page(0, 0, 0.0, asleep=True), 250)) == [("not_ready", "asleep")]
    assert ready(watch, 500) == []
    assert changes(watch.on_page(IDLE, 750)) == [("ready", "")]


def running(step: int) -> Page:
    return Page(3, 0, 0.5, progress=step)


def test_requests_that_run_without_a_step_make_the_engine_not_ready_although_health_is_good() -> None:
    """F45."""
    watch = Watch("gpu-1", 250, stall_ms=10_000)
    ready(watch, 0)
    found: list[tuple[float, str, str]] = []
    for now_ms in range(0, 12_000, 250):
        events = watch.on_page(running(7), now_ms) + watch.on_health(200, now_ms)
        found += [(now_ms, *change) for change in changes(events)]
    assert found == [(10_250, "not_ready", "stalled")]
    assert changes(watch.on_page(running(8), 12_000)) == [("ready", "")]


def test_an_engine_that_steps_idles_or_was_not_seen_has_not_stalled() -> None:
    watch = Watch("gpu-1", 250, stall_ms=10_000)
    ready(watch, 0)
    for now_ms in range(0, 60_000, 250):  # steps
        assert changes(watch.on_page(running(now_ms), now_ms)) == []
    for now_ms in range(60_000, 120_000, 250):  # idles
        assert changes(watch.on_page(Page(0, 0, 0.0, progress=1), now_ms)) == []
    watch.on_page(running(1), 120_000)
    watch.on_page(running(1), 120_250)
    for now_ms in range(121_000, 180_000, 1_000):  # is slow to answer probes
        watch.on_failure("timeout", now_ms)
    assert changes(watch.on_page(running(1), 180_000)) == []
    for now_ms in range(200_000, 260_000, 250):  # has no counter of steps
        assert changes(watch.on_page(Page(3, 0, 0.5), now_ms)) == []


def test_frozen_counters_convict_nobody_who_answers_the_routers() -> None:
    """F34."""
    watch = Watch("gpu-1", 250, stall_ms=10_000)
    ready(watch, 0)
    for now_ms in range(0, 60_000, 250):
        assert changes(watch.on_page(running(7), now_ms)) == []
        watch.on_snapshot(believed(successes=now_ms // 5_000), now_ms)


def refusing(**fields: Any) -> InstanceState:
    return believed(cause="draining", err_sum=3, **fields)


def test_an_engine_that_refuses_all_because_it_drains_is_said_to_drain_although_health_is_good() -> None:
    watch = Watch("gpu-1", 250)
    ready(watch, 0)
    assert watch.on_snapshot(believed(cause="draining", err_sum=1), 4_000) == []
    assert changes(watch.on_snapshot(refusing(ok_sum=5), 5_000)) == [("draining", "draining")]
    assert watch.on_snapshot(refusing(), 6_000) == []
    assert watch.on_snapshot(refusing(draining=True), 10_000) == []
    assert changes(watch.on_snapshot(believed(draining=True), 66_000)) == [("joined", "")]


def test_a_drain_that_somebody_else_began_is_not_ended() -> None:
    watch = Watch("gpu-1", 250)
    ready(watch, 0)
    for now_ms in range(4_000, 200_000, 4_000):
        assert watch.on_snapshot(believed(draining=True), now_ms) == []


def test_a_gauge_that_was_there_and_is_gone_has_vanished_and_one_that_never_was_has_not() -> None:
    """F30."""
    watch = Watch("gpu-1", 250)
    watch.on_page(Page(1, 0, None), 0)
    assert not watch.vanished
    watch.on_page(Page(1, 0, 0.5), 250)
    watch.on_page(Page(None, 0, None), 500)
    assert watch.vanished == ("kv_usage", "running")
    watch.on_page(Page(quiet=True), 750)
    assert watch.vanished == ("kv_usage", "running")
    watch.on_page(IDLE, 1_000)
    assert len(watch.vanished) == 0


def test_a_page_with_nothing_new_says_nothing() -> None:
    watch = Watch("gpu-1", 250)
    watch.on_page(BUSY, 0)
    assert watch.on_page(Page(quiet=True), 5_000) == []
    assert watch.page == BUSY
