"""F03: whatever the view keeps per event, batch or record has a bound, which is reached here."""

import pytest

from evenload.routing import FleetView
from evenload.routing.leases import Counts
from evenload.routing.view import MARKS_MAX, OFFSETS_MAX, TAIL_AGE_MS_MAX
from evenload.schemas import FirstToken, RouterLoad, SnapshotBatch
from evenload.scoring import DEFAULT

ME = 7
T0 = 1_000_000


@pytest.fixture
def view() -> FleetView:
    return FleetView({"a": DEFAULT}, {"a": 0}, ME, T0)


def test_own_events_leave_the_tail_when_they_are_old_however_few_they_are(view: FleetView) -> None:
    for second in range(30):
        view.observe(FirstToken(instance="a", ttft_ms=100.0), second, T0 + 1000 * second)
    kept = TAIL_AGE_MS_MAX // 1000 + 1
    assert (view.tail_events("a"), view.folded_into_base) == (kept, 30 - kept)
    assert view.read("a", Counts(), T0 + 30_000).state.first_tokens == 30  # none is lost


def test_batches_that_nobody_acknowledges_are_forgotten_beyond_a_number(view: FleetView) -> None:
    for seq in range(OFFSETS_MAX + 100):
        view.observe(FirstToken(instance="a", ttft_ms=100.0), seq, T0)
    assert len(view._partitions[0].open_events) == OFFSETS_MAX
    (tail,) = view.tails(("a",))
    assert (tail.last, tail.last_events) == (OFFSETS_MAX + 99, 1), "the newest are known"


def test_acknowledged_batches_are_forgotten_beyond_a_number(view: FleetView) -> None:
    for seq in range(OFFSETS_MAX + 100):
        view.acknowledge(0, seq, 10 * seq)
    assert len(view._partitions[0].offsets) == OFFSETS_MAX
    assert min(view._partitions[0].offsets) == 100, "the oldest go first"


def test_own_reports_of_load_are_forgotten_beyond_a_number(view: FleetView) -> None:
    for seq in range(1000):
        view.observe(RouterLoad(instance="a", in_flight=1), seq, T0)
    assert len(view._entries["a"].loads) == 64
    assert view.tail_events("a") == 0


def test_what_snapshots_said_of_own_batches_is_forgotten_beyond_a_number(view: FleetView) -> None:
    for number in range(MARKS_MAX + 100):
        said = {ME: number}
        batch = SnapshotBatch(
            v=1, partition=0, as_of=number, now_ms=T0 + number, linger_ms=20, sequences=said, snapshots=[]
        )
        view.take(number, batch, float(number))
    known = view._partitions[0]
    assert len(known._marks) == MARKS_MAX
    assert known.included_seq(MARKS_MAX + 99) == MARKS_MAX + 99, "the newest are known"
