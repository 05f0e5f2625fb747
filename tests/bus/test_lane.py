"""How events join batches and batches join groups, without clock and Kafka."""

import pytest

from evenload.bus.lane import EVENTS_MAX, GROUP_BYTES_MAX, Acked, Lane, Pending
from evenload.schemas import FirstToken, Outcome, decode_batch


def token(ttft_ms: float = 1.0) -> FirstToken:
    return FirstToken(instance="gpu-1", ttft_ms=ttft_ms)


def test_an_open_batch_joins_no_group_before_its_linger_is_over() -> None:
    lane = Lane(0, 20)
    lane.add(token(), 0.0, 0)
    assert lane.group() == []
    lane.expire()
    assert [batch.seq for batch in lane.group()] == [0]


def test_a_full_batch_is_due_and_the_next_event_opens_another() -> None:
    lane = Lane(0, 20)
    batches = [lane.add(token(), 0.0, 0)[0] for _ in range(EVENTS_MAX + 1)]
    assert (batches[0].seq, batches[0].due, len(batches[0].events)) == (0, True, EVENTS_MAX)
    assert (batches[-1].seq, batches[-1].due, len(batches[-1].events)) == (1, False, 1)
    assert lane.group() == [batches[0]]


def test_a_group_stays_the_same_until_acknowledged_and_sequences_have_no_gaps() -> None:
    lane = Lane(0, 20)
    for _ in range(3):
        lane.add(token(), 0.0, 0)
        lane.expire()
        lane.group()
    first = lane.group()
    assert [batch.seq for batch in first] == [0, 1, 2]
    assert lane.group() == first
    assert lane.acknowledge(2) == Acked(events=2, stored_records=0, stored_events=0, position=(0, 0))
    assert (lane.acked, lane.next_seq, [batch.seq for batch in lane.group()]) == (2, 3, [2])


def test_groups_are_bounded_in_size() -> None:
    lane = Lane(0, 20)
    for _ in range(40_000):
        lane.add(Outcome(instance="gpu-1", kind="ok", ttft_ms=1.5, cause="x" * 64), 0.0, 0)
    lane.expire()
    sizes = []
    while group := lane.group():
        sizes.append(sum(batch.size for batch in group))
        lane.acknowledge(len(group))
    assert max(sizes) <= GROUP_BYTES_MAX
    assert len(sizes) > 1


def test_an_event_that_cannot_be_read_back_changes_nothing() -> None:
    lane = Lane(0, 20)
    with pytest.raises(Exception, match="ttft_ms"):
        lane.add(token(-1.0), 0.0, 0)
    assert (lane.next_seq, lane.oldest_s()) == (0, None)
    batch, index, _ = lane.add(token(), 5.0, 0)
    assert (batch.seq, index, lane.oldest_s()) == (0, 0, 5.0)


def test_a_record_has_the_age_of_the_moment_it_is_made() -> None:
    lane = Lane(0, 20)
    batch, _, _ = lane.add(token(), 1.0, 77)
    lane.add(token(), 1.25, 327)
    record = decode_batch(batch.encoded("p", 9, 1.5))
    assert (record.age_ms, record.view_ms, record.incarnation, record.seq) == (500.0, 77, 9, 0)
    assert [event.at for event in record.events] == [0, 250]


def close(lane: Lane, *opened_s: float) -> None:
    """Add batches of one event each that were opened then."""
    for at_s in opened_s:
        lane.add(token(), at_s, 0)
        lane.close_open()


def seqs(batches: list[Pending]) -> list[int]:
    return [batch.seq for batch in batches]


def test_batches_go_to_disk_when_the_oldest_is_late_and_an_open_one_that_is_due_with_them() -> None:
    lane = Lane(0, 20)
    close(lane, 1.0, 2.0)
    assert lane.late(0.5) == []
    assert seqs(lane.late(1.0)) == [0, 1]
    lane.add(token(), 3.0, 0)
    assert seqs(lane.late(9.0)) == [0, 1]  # its linger is not over
    lane.expire()
    assert seqs(lane.late(2.0)) == [0, 1]
    assert seqs(lane.late(3.0)) == [0, 1, 2]


def test_what_is_on_disk_leaves_memory_but_for_what_is_being_sent() -> None:
    lane = Lane(0, 20)
    close(lane, 0.0, 1.0)
    assert seqs(lane.group()) == [0, 1]
    close(lane, 2.0, 3.0)
    assert lane.stored([(batch, (1, n)) for n, batch in enumerate(lane.late(0.0)[:3])]) == 3
    assert seqs(lane.late(9.0)) == [3]
    assert lane.oldest_s() == 0.0
    assert lane.acknowledge(1) == Acked(events=0, stored_records=1, stored_events=1, position=(1, 0))
    assert seqs(lane.group()) == [3]  # the other one that was being sent is read from disk


def test_a_batch_acknowledged_while_it_is_written_is_not_in_memory_twice() -> None:
    lane = Lane(0, 20)
    close(lane, 0.0, 1.0, 2.0)
    writing = lane.late(0.0)
    lane.group()
    assert lane.acknowledge(2).events == 2
    assert lane.acked == 2
    assert lane.stored([(writing[2], (1, 9))]) == 1
    assert (lane.group(), lane.oldest_s()) == ([], None)
