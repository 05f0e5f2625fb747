"""The segment file: whatever is cut off or flipped, what is read is what was written."""

from hypothesis import example, given
from hypothesis import strategies as st

from evenload.bus.spool.segment import MARK, Damage, Frame, frame, read

BODIES = st.lists(st.one_of(st.binary(max_size=60), st.binary(max_size=8).map(lambda rest: MARK + rest)), max_size=6)


def written(bodies: list[bytes]) -> tuple[bytes, list[int]]:
    """A segment and where its frames end."""
    data, ends = b"", [0]
    for body in bodies:
        data += frame(body)
        ends.append(len(data))
    return data, ends


def bodies_of(items: list[Frame | Damage]) -> list[bytes]:
    return [item.body for item in items if isinstance(item, Frame)]


def covers(items: list[Frame | Damage], data: bytes) -> bool:
    """Every byte is in exactly one item, in order."""
    ends = [0, *(item.end for item in items)]
    return [item.start for item in items] == ends[:-1] and ends[-1] == len(data)


@given(BODIES)
@example([b"", MARK, frame(b"inner")])
def test_what_was_written_is_read(bodies: list[bytes]) -> None:
    data, ends = written(bodies)
    items = list(read(data))
    assert bodies_of(items) == bodies
    assert [item.end for item in items] == ends[1:]


@given(BODIES, st.data())
def test_any_truncation_costs_only_the_frame_that_it_cuts_and_is_torn_not_damaged(
    bodies: list[bytes], draw: st.DataObject
) -> None:
    data, ends = written(bodies)
    cut = draw.draw(st.integers(0, len(data)))
    items = list(read(data[:cut]))
    whole = sum(end <= cut for end in ends[1:])
    assert bodies_of(items) == bodies[:whole]
    assert covers(items, data[:cut])
    assert [item for item in items if isinstance(item, Damage)] == (
        [Damage(ends[whole], cut, True)] if cut not in ends else []
    )


@given(BODIES.filter(bool), st.data())
def test_any_flipped_byte_costs_only_the_frame_that_it_is_in(bodies: list[bytes], draw: st.DataObject) -> None:
    data, ends = written(bodies)
    at = draw.draw(st.integers(0, len(data) - 1))
    flipped = bytearray(data)
    flipped[at] ^= draw.draw(st.integers(1, 255))
    items = list(read(bytes(flipped)))
    hit = sum(end <= at for end in ends[1:])
    assert bodies_of(items) == bodies[:hit] + bodies[hit + 1 :]
    assert covers(items, bytes(flipped))
    assert [(item.start, item.end) for item in items if isinstance(item, Damage)] == [(ends[hit], ends[hit + 1])]


@given(st.binary(max_size=200))
@example(MARK * 5)
@example(b"\0" * 64)
def test_any_bytes_at_all_are_read_to_their_end(data: bytes) -> None:
    assert covers(list(read(data)), data)


@given(BODIES, st.binary(max_size=40), BODIES)
def test_behind_any_bytes_reading_goes_on_at_the_next_frame(
    before: list[bytes], junk: bytes, after: list[bytes]
) -> None:
    items = list(read(written(before)[0] + junk + written(after)[0]))
    assert bodies_of(items)[: len(before)] == before
    assert not after or bodies_of(items)[-len(after) :] == after


@given(BODIES, st.data())
def test_reading_begins_where_it_is_told(bodies: list[bytes], draw: st.DataObject) -> None:
    data, ends = written(bodies)
    skipped = draw.draw(st.integers(0, len(bodies)))
    assert bodies_of(list(read(data, ends[skipped]))) == bodies[skipped:]
