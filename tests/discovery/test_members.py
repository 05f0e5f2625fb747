"""Who belongs to the fleet: what is said of whom, and that the log comes to hold what is wanted, whatever happened."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.discovery.members import (
    FORGOTTEN_MS,
    LEAVE_MS_MIN,
    RESTATE_MS,
    UNHEARD_MS,
    Difference,
    Members,
    difference,
)
from evenload.schemas import EngineGauges, Event, InstanceState, Membership, Outcome, RouterLoad
from evenload.scoring import apply, fresh, snapshot

STEP_MS = 500


class Log:
    """A log with its scorer: events are folded by the real fold, snapshots come at each step."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.states: dict[str, InstanceState] = {}
        self.said: list[Membership] = []

    def append(self, event: Event) -> None:
        name = event.instance
        self.states[name] = apply(self.states.get(name) or fresh(name, self.now_ms), event, self.now_ms)

    def say(self, event: Membership | None) -> None:
        if event is not None:
            self.said.append(event)
            self.append(event)

    def show(self, members: Members) -> None:
        for state in self.states.values():
            item = snapshot(state, self.now_ms)
            members.on_snapshot(item, self.now_ms, float(self.now_ms))

    def step(self, members: Members, *, heard: bool = True, quiet: bool = False) -> None:
        """Half a second: what is due is said, and the snapshots show it, unless Kafka is away."""
        self.now_ms += STEP_MS
        now_ms = float(self.now_ms)
        if not quiet:
            self.show(members)
        for name in sorted({*members.unsettled(), *self.states}):
            event = members.due(name, now_ms, heard=heard and not quiet)
            if not quiet:
                self.say(event)
        members.prune(now_ms)

    def settle(self, members: Members, ms: float = 4 * RESTATE_MS) -> None:
        for _ in range(int(ms / STEP_MS)):
            self.step(members)

    def want(self, members: Members, **wanted: str) -> Difference:
        return members.want(wanted, float(self.now_ms))

    def what(self, name: str) -> list[tuple[str, int]]:
        return [(event.change, event.gen) for event in self.said if event.instance == name]


def test_a_difference_has_who_joined_left_and_was_replaced() -> None:
    found = difference({"a": "1", "b": "1", "c": "1"}, {"b": "1", "c": "2", "d": "1"})
    assert found == Difference(("d",), ("a",), ("c",))


def test_an_instance_that_the_log_does_not_know_joins_once_the_log_has_been_heard() -> None:
    log, members = Log(), Members()
    log.want(members, a="1")
    log.step(members, heard=False)
    assert log.said == []
    log.settle(members)
    assert log.what("a") == [("joined", 0)]


def test_an_instance_that_the_log_knows_is_left_alone_and_so_is_an_operators_drain() -> None:
    log, members = Log(), Members()
    log.append(Membership(instance="a", change="joined"))
    log.append(Membership(instance="a", change="draining", cause="operator"))
    log.want(members, a="1")
    log.settle(members)
    assert log.said == []
    assert log.states["a"].draining


def test_one_that_is_taken_out_drains_until_its_requests_have_ended_then_it_leaves() -> None:
    log, members = Log(), Members()
    log.want(members, a="1")
    log.settle(members)
    log.append(RouterLoad(instance="a", in_flight=2, awaiting=0, in_flight_tokens=10, awaiting_tokens=0))
    log.want(members)
    for _ in range(20):
        log.append(RouterLoad(instance="a", in_flight=2, awaiting=0, in_flight_tokens=10, awaiting_tokens=0))
        log.step(members)
    assert log.what("a") == [("joined", 0), ("draining", 0)]
    log.append(RouterLoad(instance="a"))
    log.settle(members)
    assert log.what("a") == [("joined", 0), ("draining", 0), ("left", 0)]
    assert log.states["a"].left_ms is not None


def test_one_whose_requests_do_not_end_leaves_when_its_time_is_up() -> None:
    log, members = Log(), Members(leave_ms_max=20_000)
    log.want(members, a="1")
    log.settle(members)
    log.want(members)
    begun_ms = log.now_ms
    while log.states["a"].left_ms is None:
        log.append(RouterLoad(instance="a", in_flight=1, awaiting=0, in_flight_tokens=1, awaiting_tokens=0))
        log.step(members)
    assert 20_000 <= log.now_ms - begun_ms <= 21_000


def test_one_that_comes_back_before_it_left_goes_on_as_it_was() -> None:
    log, members = Log(), Members()
    log.want(members, a="1")
    log.settle(members)
    log.append(Outcome(instance="a", kind="ok"))
    log.want(members)
    log.step(members)
    assert log.states["a"].draining
    log.want(members, a="1")
    log.settle(members)
    assert log.what("a") == [("joined", 0), ("draining", 0), ("joined", 0)]
    assert (log.states["a"].draining, log.states["a"].successes) == (False, 1)


def test_one_that_comes_back_after_it_left_starts_anew_and_late_events_only_count() -> None:
    log, members = Log(), Members()
    log.want(members, a="1")
    log.settle(members)
    log.append(Outcome(instance="a", kind="http_error", status=500))
    log.want(members)
    log.settle(members)
    left = log.states["a"]
    log.append(Outcome(instance="a", gen=0, kind="ok"))
    assert log.states["a"].left_ms == left.left_ms, "a late event resurrects nothing"
    assert log.states["a"].older_generation == left.older_generation + 1
    log.want(members, a="1")
    log.step(members)
    new = log.states["a"]
    assert (new.generation, new.errors, new.left_ms, new.damped) == (1, 0, None, 30.0)
    log.append(Outcome(instance="a", gen=0, kind="http_error", status=500))
    log.append(EngineGauges(instance="a", gen=0, waiting=1000))
    assert (log.states["a"].err_sum, log.states["a"].waiting) == (0, None)
    assert members.generation("a") == 1


def test_another_process_under_the_same_name_is_another_generation_at_once() -> None:
    log, members = Log(), Members()
    log.want(members, a="http://h:1 uid-1")
    log.settle(members)
    log.want(members, a="http://h:1 uid-2")
    log.settle(members)
    assert log.what("a") == [("joined", 0), ("joined", 1)]
    log.want(members)
    log.step(members)
    log.want(members, a="http://h:2 uid-3")
    log.settle(members)
    assert log.states["a"].generation == 2
    assert not log.states["a"].draining


def test_what_is_lost_on_the_way_is_said_again() -> None:
    log, members = Log(), Members()
    log.want(members, a="1")
    log.settle(members)
    log.want(members)
    assert members.due("a", float(log.now_ms), heard=True) is not None  # and Kafka does not get it
    log.settle(members)
    assert log.what("a") == [("joined", 0), ("draining", 0), ("left", 0)]


def test_nothing_is_said_twice_while_snapshots_lag() -> None:
    log, members = Log(), Members()
    log.append(Membership(instance="a", change="left"))
    log.show(members)
    log.want(members, a="1")
    now_ms = float(log.now_ms)
    first = members.due("a", now_ms, heard=True)
    assert first == Membership(instance="a", gen=1, change="joined")
    log.show(members)  # an old one
    assert members.due("a", now_ms + RESTATE_MS - 1, heard=True) is None
    assert members.due("a", now_ms + RESTATE_MS, heard=True) == first, "the same generation, not one more"


@pytest.mark.parametrize(("gauges", "forgotten"), [(True, True), (False, False)])
def test_an_engine_nobody_wants_polls_or_asks_for_ten_minutes_is_forgotten(gauges: bool, forgotten: bool) -> None:
    """It was taken out while no collector ran. Of a provider nobody can tell."""
    log, members = Log(), Members()
    log.append(EngineGauges(instance="a", waiting=1) if gauges else Outcome(instance="a", kind="ok"))
    log.now_ms += FORGOTTEN_MS - 10_000
    log.step(members)
    assert log.said == []
    log.settle(members, 20_000)
    assert log.what("a") == ([("left", 0)] if forgotten else [])


def test_what_is_known_of_instances_that_nobody_speaks_of_is_dropped() -> None:
    log, members = Log(), Members()
    for number in range(50):
        name = f"pod-{number}"
        log.want(members, **{name: "1"})
        log.settle(members)
    log.want(members)
    log.settle(members)
    log.states.clear()  # their graves are closed
    log.settle(members, 2 * UNHEARD_MS)
    sizes = [len(getattr(members, name)) for name in ("_believed", "_leaving", "_least", "_told", "_told_ms")]
    assert sizes == [0] * 5


NAMES = ("a", "b")
IDENTITIES = st.sampled_from(("", "1", "2"))  # "" is not wanted
OPERATIONS = st.one_of(
    st.fixed_dictionaries(dict.fromkeys(NAMES, IDENTITIES)),
    st.integers(1, 40),  # steps
    st.integers(-10, -1),  # steps without Kafka
    st.sampled_from(NAMES),  # a late event of the first generation
    st.just(None),  # the collector is replaced by one that has seen nothing
)


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, max_size=20))
def test_after_any_sequence_of_wanted_sets_the_log_holds_what_is_wanted(
    operations: list[Mapping[str, str] | int | str | None],
) -> None:
    log, members = Log(), Members(leave_ms_max=30_000)
    wanted: dict[str, str] = {}
    generations: dict[str, int] = {}
    restarted = False
    for operation in operations:
        if operation is None:
            members, restarted = Members(leave_ms_max=30_000), True
            members.want(wanted, float(log.now_ms))
        elif isinstance(operation, int):
            for _ in range(abs(operation)):
                log.step(members, quiet=operation < 0)
        elif isinstance(operation, str):
            before = log.states.get(operation)
            if before is not None and (before.left_ms is not None or before.generation):
                log.append(Outcome(instance=operation, kind="http_error", status=500))
                after = log.states[operation]
                assert (after.left_ms, after.errors) == (before.left_ms, before.errors)
        else:
            wanted = {name: identity for name, identity in operation.items() if identity}
            members.want(wanted, float(log.now_ms))
        for name, state in log.states.items():
            assert state.generation >= generations.get(name, 0), "generations never fall"
            generations[name] = state.generation
    log.settle(members, LEAVE_MS_MIN + 30_000 + 4 * RESTATE_MS)
    said = len(log.said)
    log.settle(members)
    assert len(log.said) == said, "then there is nothing more to say"
    for name in NAMES:
        held = log.states.get(name)
        if name in wanted:
            assert held is not None
            assert held.left_ms is None
            if not restarted:  # a collector that has seen nothing takes a drain for an operator's
                assert not held.draining
        elif held is not None and not restarted:
            assert held.left_ms is not None


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(("1", "2", "3")), min_size=1, max_size=8))
def test_each_change_of_identity_ends_in_a_generation_of_its_own(identities: list[str]) -> None:
    log, members = Log(), Members()
    changes = 0
    last = identities[0]
    for identity in identities:
        log.want(members, a=identity)
        log.settle(members)
        changes += identity != last
        last = identity
    assert log.states["a"].generation == changes
