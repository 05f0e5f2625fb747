"""What a view makes of a scorer that starts anew, of loads that expire, and of clocks that jump."""

from evenload.routing import FleetView, LogClock
from evenload.routing.leases import Counts
from evenload.schemas import FirstToken, InstanceSnapshot, InstanceState, Outcome, RouterLoad, SnapshotBatch
from evenload.scoring import DEFAULT, apply, fresh, snapshot

ME = 7
T0 = 1_700_000_000_000
HOUR_MS = 3_600_000


def view_of(*names: str) -> FleetView:
    return FleetView(dict.fromkeys(names, DEFAULT), dict.fromkeys(names, 0), ME, T0)


def record(as_of: int, sequences: dict[int, int], *items: InstanceSnapshot, now_ms: int = T0) -> SnapshotBatch:
    return SnapshotBatch(
        v=1, partition=0, as_of=as_of, now_ms=now_ms, linger_ms=20, sequences=sequences, snapshots=list(items)
    )


def item(state: InstanceState, now_ms: int = T0) -> InstanceSnapshot:
    return snapshot(state, now_ms, DEFAULT)


def test_what_a_dead_scorer_said_of_own_batches_does_not_hold_for_the_older_states_of_its_successor() -> None:
    view = view_of("a", "b")
    a, b = fresh("a", T0), fresh("b", T0)
    view.take(0, record(3, {}, item(a), item(b)), 0.0)
    view.observe(Outcome(instance="b", kind="ok"), 5, T0)
    view.take(1, record(9, {ME: 5}, item(a)), 0.0)  # its last words; a's snapshot includes own batch 5
    view.take(2, record(6, {ME: 4}, item(b)), 0.0)  # the successor reads the log again, and is at offset 6 so far
    assert view.read("b", Counts(), T0).state.successes == 1
    after = apply(b, Outcome(instance="b", kind="ok"), T0)
    view.take(3, record(9, {ME: 5}, item(after)), 0.0)
    assert view.read("b", Counts(), T0).state.successes == 1
    assert view.tail_events("b") == 0


def test_an_own_report_that_had_expired_in_the_snapshot_is_not_subtracted_from_the_others() -> None:
    view = view_of("a")
    view.observe(RouterLoad(instance="a", in_flight=5), 0, T0)
    view.acknowledge(0, 0, 1, T0 + 200)
    late_ms = T0 + 200 + int(DEFAULT.load_expire_ms)
    state = fresh("a", late_ms)
    both = InstanceState(instance="a", log_ms=late_ms, tick=late_ms // 100, window_s=late_ms // 1000)
    assert state.tick == both.tick
    theirs = item(state, late_ms)
    sums = {"replicas": 1, "in_flight": 4}
    shown = InstanceSnapshot(**{name: getattr(theirs, name) for name in theirs.__struct_fields__} | sums)
    view.take(0, record(1, {ME: 0}, shown, now_ms=late_ms), 0.0)
    assert view.read("a", Counts(), late_ms).others_in_flight == 4


def test_a_report_delayed_on_its_way_expires_by_its_timestamp_in_the_log() -> None:
    view = view_of("a")
    view.observe(RouterLoad(instance="a", in_flight=5), 0, T0)
    view.acknowledge(0, 0, 1, T0 + 4_000)  # Kafka was away for a while
    theirs = item(fresh("a", T0 + 4_000), T0 + 4_000)
    shown = InstanceSnapshot(
        **{name: getattr(theirs, name) for name in theirs.__struct_fields__} | {"replicas": 2, "in_flight": 9}
    )
    view.take(0, record(1, {ME: 0}, shown, now_ms=T0 + 4_000), 0.0)
    assert view.read("a", Counts(), T0 + 4_000).others_in_flight == 4


def test_a_jump_of_the_brokers_clock_by_an_hour_loses_no_own_event_and_the_view_follows_at_once() -> None:
    clock, view = LogClock(T0, 0.0), view_of("a")
    clock.anchor(T0, 0.0)
    view.take(0, record(0, {}, item(fresh("a", T0))), 0.0)
    view.observe(FirstToken(instance="a", ttft_ms=100.0), 0, clock.now_ms(10.0))
    later = T0 + HOUR_MS
    after = apply(fresh("a", T0), FirstToken(instance="a", ttft_ms=100.0), later)
    clock.anchor(later + 20, 20.0)
    view.take(1, record(1, {ME: 0}, item(after, later + 20), now_ms=later + 20), 20.0)
    assert clock.now_ms(30.0) == later + 30
    assert view.read("a", Counts(), clock.now_ms(30.0)).state.first_tokens == 1
    view.observe(FirstToken(instance="a", ttft_ms=100.0), 1, clock.now_ms(40.0))
    assert view.tail_events("a") == 1
    assert view.read("a", Counts(), clock.now_ms(40.0)).state.first_tokens == 2


def test_a_routers_wall_clock_that_is_an_hour_off_is_forgotten_with_the_first_snapshot() -> None:
    for off_ms in (-HOUR_MS, HOUR_MS):
        clock = LogClock(T0 + off_ms, 0.0)
        view = FleetView({"a": DEFAULT}, {"a": 0}, ME, T0 + off_ms)
        view.observe(Outcome(instance="a", kind="ok"), 0, clock.now_ms(5.0))
        clock.anchor(T0, 10.0)
        view.take(0, record(0, {ME: 0}, item(apply(fresh("a", T0), Outcome(instance="a", kind="ok"), T0))), 10.0)
        right = view_of("a")
        right.take(0, record(0, {}, item(apply(fresh("a", T0), Outcome(instance="a", kind="ok"), T0))), 10.0)
        now_ms = clock.now_ms(2_010.0)
        assert now_ms == T0 + 2_000
        assert view.read("a", Counts(), now_ms) == right.read("a", Counts(), now_ms)
