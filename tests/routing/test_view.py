"""The router's view: newest snapshot plus own tail, each own event exactly once."""

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.routing import FleetView, LeaseBook
from evenload.routing.leases import Counts
from evenload.routing.view import TAIL_AGE_MS_MAX, TAIL_EVENTS_MAX
from evenload.schemas import (
    Batch,
    Event,
    FirstToken,
    InstanceState,
    Outcome,
    RouterLoad,
    SnapshotBatch,
    encode,
)
from evenload.scoring import DEFAULT, ScoringConfig, apply, fold, fresh, snapshot

ME, OTHER = 7, 8
T0 = 1_000_000


def config_of(_: str) -> ScoringConfig:
    return DEFAULT


class World:
    """One telemetry partition with its log and scorer, two producers, and the view of the first."""

    def __init__(self) -> None:
        self.log: list[Batch] = []
        self.applied = 0
        self.states: dict[str, InstanceState] = {}
        self.reported: dict[int, int] = {}
        self.records = 0
        self.view = FleetView({"a": DEFAULT, "b": DEFAULT}, {"a": 0, "b": 0}, ME, T0)
        self.seq = {ME: 0, OTHER: 0}
        self.open: list[Event] = []
        self.unsent: list[tuple[int, list[Event]]] = []
        self.unacknowledged: list[tuple[int, int]] = []
        self.own: list[tuple[int, Event]] = []  # every own event with its batch
        self.now = T0

    def observe(self, instance: str, ttft_ms: float) -> None:
        event = FirstToken(instance=instance, ttft_ms=ttft_ms)
        self.open.append(event)
        self.own.append((self.seq[ME], event))
        self.view.observe(event, self.seq[ME], self.now)

    def close_batch(self) -> None:
        if self.open:
            self.unsent.append((self.seq[ME], self.open))
            self.seq[ME] += 1
            self.open = []

    def deliver(self, again: bool = False) -> None:
        """The oldest closed batch reaches the log; `again`: once more, as after a lost acknowledgement."""
        if self.unsent:
            seq, events = self.unsent.pop(0)
            for _ in range(1 + again):
                self.log.append(Batch(v=1, producer="me", incarnation=ME, seq=seq, events=events))
            self.unacknowledged.append((seq, len(self.log) - 1 - again))

    def acknowledge(self) -> None:
        if self.unacknowledged:
            seq, offset = self.unacknowledged.pop(0)
            self.view.acknowledge(0, seq, offset)

    def other(self, instance: str, ttft_ms: float) -> None:
        event = FirstToken(instance=instance, ttft_ms=ttft_ms)
        self.log.append(Batch(v=1, producer="other", incarnation=OTHER, seq=self.seq[OTHER], events=[event]))
        self.seq[OTHER] += 1

    def score(self, records: int) -> None:
        for offset in range(self.applied, min(len(self.log), self.applied + records)):
            batch = self.log[offset]
            self.states.update(fold(self.states, batch, offset, self.now, config_of))
            self.reported[batch.incarnation] = max(self.reported.get(batch.incarnation, -1), batch.seq)
            self.applied = offset + 1

    def publish(self, instances: list[str]) -> None:
        batch = SnapshotBatch(
            v=1,
            partition=0,
            as_of=self.applied - 1,
            now_ms=self.now,
            linger_ms=20,
            sequences=self.reported,
            snapshots=[snapshot(self.states[name], self.now, DEFAULT) for name in instances if name in self.states],
        )
        self.reported = {}
        self.view.take(self.records, batch, float(self.now))
        self.records += 1
        for one in batch.snapshots:
            self.published[one.state.instance] = (batch.as_of, one.state)

    published: dict[str, tuple[int, InstanceState]]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("observe"), st.sampled_from("ab"), st.floats(1, 5000)),
        st.tuples(st.just("other"), st.sampled_from("ab"), st.floats(1, 5000)),
        st.tuples(st.just("close_batch")),
        st.tuples(st.just("deliver"), st.booleans()),
        st.tuples(st.just("acknowledge")),
        st.tuples(st.just("score"), st.integers(1, 4)),
        st.tuples(st.just("publish"), st.sampled_from([["a"], ["b"], ["a", "b"]])),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_view_is_the_fold_of_snapshot_and_the_own_events_it_lacks(moves: list[tuple[Any, ...]]) -> None:
    world = World()
    world.published = {}
    for name, *arguments in moves:
        getattr(world, name)(*arguments)
        for instance in "ab":
            as_of, base = world.published.get(instance, (-1, fresh(instance, T0, DEFAULT)))
            included = {batch.seq for batch in world.log[: as_of + 1] if batch.incarnation == ME}
            expected = base
            for seq, event in world.own:
                if event.instance == instance and seq not in included:
                    expected = apply(expected, event, world.now, DEFAULT)
            got = world.view.read(instance, Counts(), world.now).state
            got.as_of = expected.as_of
            assert encode(got) == encode(expected)


def test_own_share_of_a_snapshots_load_is_not_counted_as_others() -> None:
    world = World()
    world.published = {}
    mine = RouterLoad(instance="a", in_flight=5, awaiting=2, awaiting_tokens=300, in_flight_tokens=500)
    theirs = RouterLoad(instance="a", in_flight=4, awaiting=1, awaiting_tokens=50, in_flight_tokens=90)
    world.view.observe(mine, 0, T0)
    world.log.append(Batch(v=1, producer="me", incarnation=ME, seq=0, events=[mine]))
    world.log.append(Batch(v=1, producer="other", incarnation=OTHER, seq=0, events=[theirs]))
    world.score(9)
    later = RouterLoad(instance="a", in_flight=9)  # told after the snapshot: must not be subtracted
    world.publish(["a"])
    world.view.observe(later, 1, T0)
    seen = world.view.read("a", Counts(), T0)
    assert (seen.others_in_flight, seen.others_awaiting, seen.others_awaiting_tokens) == (4, 1, 50)
    assert world.view.read("a", Counts(), T0 + 3000).others_in_flight == 0  # a silent replica's load expires


def test_an_older_snapshot_never_replaces_a_newer_one() -> None:
    world = World()
    world.published = {}
    world.other("a", 100.0)
    world.other("a", 900.0)
    world.score(1)
    old = snapshot(world.states["a"], T0, DEFAULT)
    world.score(1)
    world.publish(["a"])
    stale = SnapshotBatch(v=1, partition=0, as_of=0, now_ms=T0, linger_ms=20, sequences={}, snapshots=[old])
    world.view.take(1, stale, 0.0)
    assert world.view.read("a", Counts(), T0).state.first_tokens == 2
    assert world.view.older_snapshots == 1


def test_without_kafka_the_view_goes_on_with_its_own_tail_within_bounds() -> None:
    view = FleetView({"a": DEFAULT}, {"a": 0}, ME, T0)
    rng = random.Random(1)
    for number in range(TAIL_EVENTS_MAX + 500):
        view.observe(FirstToken(instance="a", ttft_ms=rng.uniform(100, 200)), number, T0 + number // 10)
    assert view.tail_events("a") == TAIL_EVENTS_MAX
    assert view.folded_into_base == 500
    later = T0 + TAIL_AGE_MS_MAX + 10_000
    view.observe(Outcome(instance="a", kind="ok"), 9999, later)
    assert view.tail_events("a") == 1
    seen = view.read("a", Counts(), later)
    assert seen.state.first_tokens == TAIL_EVENTS_MAX + 500
    assert seen.score == pytest.approx(99.7, abs=0.3)


def test_the_oldest_own_event_that_no_snapshot_includes_tells_how_old_the_words_are() -> None:
    world = World()
    world.published = {}
    assert world.view.read("a", Counts(), T0).pending_ms is None
    for step in range(3):
        world.now = T0 + 100 * step
        world.observe("a", 50.0)
        world.close_batch()
    assert world.view.read("a", Counts(), T0 + 900).pending_ms == T0
    assert world.view.read("b", Counts(), T0 + 900).pending_ms is None
    world.deliver()
    world.deliver()
    world.score(9)
    world.now = T0 + 900
    world.publish(["a"])
    assert world.view.read("a", Counts(), T0 + 900).pending_ms == T0 + 200
    folded = FleetView({"a": DEFAULT}, {"a": 0}, ME, T0)
    for number in range(TAIL_EVENTS_MAX + 9):  # beyond the tail's bound: the first are in the base, but in no snapshot
        folded.observe(Outcome(instance="a", kind="ok"), number, T0 + number)
    assert folded.read("a", Counts(), T0 + 9000).pending_ms == T0


def test_a_never_seen_instance_starts_at_the_warm_up_score() -> None:
    """F33."""
    view = FleetView({"a": DEFAULT}, {"a": 0}, ME, T0)
    assert view.read("a", Counts(), T0).score == 30.0
    assert view.read("a", Counts(), T0 + 1000).score == 45.0


def test_reading_is_repeatable_and_own_load_comes_from_leases() -> None:
    view = FleetView({"a": DEFAULT}, {"a": 0}, ME, T0)
    book = LeaseBook()
    book.book("a", 120, 0.0)
    first = view.read("a", book.counts("a"), T0)
    assert (first.in_flight, first.awaiting, first.awaiting_tokens) == (1, 1, 120)
    assert encode(view.read("a", book.counts("a"), T0).state) == encode(first.state)


def test_decisions_can_name_what_the_view_was_made_of() -> None:
    world = World()
    world.published = {}
    world.observe("a", 100.0)
    world.close_batch()
    world.observe("a", 110.0)
    world.observe("b", 120.0)
    tails = world.view.tails(("a", "b"))
    assert [(tail.partition, tail.first, tail.last, tail.last_events) for tail in tails] == [(0, 0, 1, 2)]
    assert world.view.offsets(("a", "b")) == {0: -1}
    world.deliver()
    world.score(1)
    world.publish(["a", "b"])
    assert world.view.offsets(("a",)) == {0: 0}
    assert [(tail.first, tail.last) for tail in world.view.tails(("a",))] == [(1, 1)]


def test_an_own_report_that_only_a_neighbours_snapshot_includes_is_not_subtracted() -> None:
    world = World()
    world.published = {}
    theirs = RouterLoad(instance="a", in_flight=4)
    world.log.append(Batch(v=1, producer="other", incarnation=OTHER, seq=0, events=[theirs]))
    world.other("b", 100.0)
    world.score(9)
    world.publish(["a", "b"])
    mine = RouterLoad(instance="a", in_flight=3)
    world.view.observe(mine, 0, T0)
    world.log.append(Batch(v=1, producer="me", incarnation=ME, seq=0, events=[mine]))
    world.score(9)
    world.publish(["b"])  # the partition's record says that batch 0 is in, but `a` was not in it
    assert world.view.read("a", Counts(), T0).others_in_flight == 4


def test_one_more_event_is_folded_without_walking_the_tail() -> None:
    class Counted(deque[Any]):
        walks = 0

        def __iter__(self) -> Iterator[Any]:
            type(self).walks += 1
            return super().__iter__()

    def state() -> InstanceState:
        return world.view.read("a", Counts(), world.now).state

    world = World()
    for _ in range(50):
        world.observe("a", 100.0)
    state()
    entry = world.view._entries["a"]
    entry.tail = Counted(entry.tail)
    world.observe("a", 900.0)
    world.observe("a", 800.0)
    after = state()
    assert Counted.walks == 0
    entry.refold()
    assert encode(state()) == encode(after)
