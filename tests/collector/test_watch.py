"""What polls mean, without any poll."""

from evenload.collector.vllm import Page
from evenload.collector.watch import Watch
from evenload.schemas import EngineGauges, Event, Membership

IDLE = Page(0, 0, 0.0)
BUSY = Page(5, 2, 0.5)


def changes(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.change, event.cause) for event in events if isinstance(event, Membership)]


def test_gauges_are_said_when_they_change_and_at_least_once_a_second() -> None:
    watch = Watch("gpu-1", 250)
    said = [bool(watch.on_page(IDLE, now_ms)) for now_ms in range(0, 2_250, 250)]
    assert said == [True, False, False, False, True, False, False, False, True]
    assert watch.on_page(BUSY, 2_250) == [EngineGauges(instance="gpu-1", running=5, waiting=2, kv_usage=0.5)]


def test_a_refused_connection_makes_the_instance_not_ready_at_once_and_is_said_once() -> None:
    watch = Watch("gpu-1", 250)
    assert changes(watch.on_health(200, 0)) == [("ready", "")]
    assert changes(watch.on_failure("refused", 250)) == [("not_ready", "refused")]
    assert watch.on_failure("refused", 500) == []
    assert watch.ready is False


def test_an_instance_that_never_answered_is_not_ready_when_refused() -> None:
    assert changes(Watch("gpu-1", 250).on_failure("refused", 0)) == [("not_ready", "refused")]


def test_silence_alone_never_removes_an_instance() -> None:
    watch = Watch("gpu-1", 250)
    watch.on_health(200, 0)
    for cause in ("timeout", "cut", "unreachable", "protocol", "status"):
        for now_ms in range(0, 60_000, 1_000):
            assert watch.on_failure(cause, now_ms) == []
    assert watch.ready is True


def test_health_503_makes_it_not_ready_and_200_ready_again() -> None:
    watch = Watch("gpu-1", 250)
    assert changes(watch.on_health(200, 0)) == [("ready", "")]
    assert changes(watch.on_health(503, 1)) == [("not_ready", "health_503")]
    assert watch.on_health(500, 2) == []
    assert changes(watch.on_health(200, 3)) == [("ready", "")]


def test_a_restart_is_not_forgotten_while_the_new_process_is_not_healthy_yet() -> None:
    watch = Watch("gpu-1", 250)
    watch.on_health(200, 0)
    assert changes(watch.on_failure("refused", 1)) == [("not_ready", "refused")]
    assert watch.on_health(503, 2) == []
    assert changes(watch.on_health(200, 3)) == [("ready", "")]


def test_health_is_asked_always_until_ready_and_then_once_a_second() -> None:
    watch = Watch("gpu-1", 250)
    assert watch.wants_health(0)
    watch.on_health(200, 0)
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
    assert watch.on_snapshot(True, 0) == []
    watch.on_failure("refused", 1_000)
    assert watch.on_snapshot(True, 2_000) == []
    assert changes(watch.on_snapshot(True, 4_000)) == [("not_ready", "refused")]
    assert watch.on_snapshot(True, 5_000) == []
    assert watch.on_snapshot(False, 9_000) == []
