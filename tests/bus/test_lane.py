"""How events join batches and batches join groups, without clock and Kafka."""

import pytest

from evenload.bus.lane import EVENTS_MAX, GROUP_BYTES_MAX, Lane
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
    assert lane.acknowledge(2) == 2
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
