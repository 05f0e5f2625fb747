"""The segment files of one partition: a queue that outlives its process, whatever happens to the files."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evenload.bus.spool.entry import Entry, Stored
from evenload.bus.spool.partition import PartitionSpool
from evenload.bus.spool.segment import frame
from evenload.schemas import Batch, FirstToken, decode_batch, encode

SEGMENT_BYTES = 2_000
ROOM = 10**9


def entry(seq: int, events: int = 1) -> Entry:
    """A batch whose times and size follow from its sequence."""
    tokens = [FirstToken(instance="gpu-1", ttft_ms=float(seq)) for _ in range(events)]
    return Entry(
        1_000 + seq, 5_000 + seq, events, encode(Batch(producer="p", incarnation=7, seq=seq, events=list(tokens), v=1))
    )


def opened(folder: Path) -> PartitionSpool:
    spool = PartitionSpool(folder, SEGMENT_BYTES, "never")
    spool.open()
    return spool


def forget(spool: PartitionSpool, group: list[Stored]) -> None:
    spool.acknowledge((group[-1].segment, group[-1].end), len(group), sum(one.entry.events for one in group))


def drained(spool: PartitionSpool, bytes_max: int = 1_500) -> list[int]:
    """Read and acknowledge all; returns the sequences."""
    found: list[int] = []
    while spool:
        if group := spool.read(bytes_max):
            found += [one.batch.seq for one in group]
            forget(spool, group)
    return found


class Queue(RuleBasedStateMachine):
    """Against a list: appends, reads, acknowledgements, and kills, each with what a kill may leave behind."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.part = self.folder / "0"
        self.spool = opened(self.part)
        self.expected: list[Entry] = []
        self.next = 0
        self.sent: list[int] = []

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(count=st.integers(1, 12), events=st.integers(1, 5))
    def append(self, count: int, events: int) -> None:
        entries = [entry(self.next + n, events) for n in range(count)]
        assert len(self.spool.append(entries, ROOM)) == count
        self.expected += entries
        self.next += count

    @rule(count=st.integers(1, 12), room=st.integers(0, 900))
    def append_what_there_is_room_for(self, count: int, room: int) -> None:
        entries = [entry(self.next + n) for n in range(count)]
        size = self.spool.size
        taken = len(self.spool.append(entries, room))
        assert self.spool.size <= size + room
        self.expected += entries[:taken]
        self.next += taken

    @rule(bytes_max=st.integers(1, 3_000), share=st.floats(0, 1))
    def send(self, bytes_max: int, share: float) -> None:
        group = self.spool.read(bytes_max)
        assert [one.entry for one in group] == self.expected[: len(group)]
        assert bool(group) == bool(self.expected)
        written = group[: round(share * len(group))]
        if written:
            forget(self.spool, written)
            del self.expected[: len(written)]

    @rule(torn=st.integers(0, 60))
    def kill(self, torn: int) -> None:
        """The process is gone; of the write that it was at, the first bytes are there."""
        newest = max(self.part.glob("*.segment"), default=None)
        self.spool.close()  # the descriptor only: nothing is buffered in the process
        if newest is not None:
            with newest.open("ab") as file:
                file.write(frame(entry(10**6).packed())[:torn])
        self.spool = opened(self.part)

    @precondition(lambda self: (self.part / "cursor").exists())
    @rule()
    def lose_the_cursor(self) -> None:
        """Then some are sent again: a suffix of what was sent, then the rest."""
        self.spool.close()
        (self.part / "cursor").write_bytes(b"damaged")
        self.spool = opened(self.part)
        again = self.spool.records - len(self.expected)
        assert 0 <= again * 60 < 2 * SEGMENT_BYTES  # what was in the oldest segment, at most
        while self.spool.records > len(self.expected):
            forget(self.spool, self.spool.read(1))
        assert [one.batch.seq for one in self.spool.read(1)] == [decode_batch(e.record).seq for e in self.expected[:1]]

    @invariant()
    def counts_are_right(self) -> None:
        assert self.spool.records == len(self.expected)
        assert self.spool.events == sum(one.events for one in self.expected)
        assert (self.spool.lost_events, self.spool.damages) == (0, 0)
        assert self.spool.size == sum(path.stat().st_size for path in self.part.glob("*.segment"))
        oldest = self.spool.oldest
        assert (oldest is None) == (not self.expected)


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_record_comes_back_as_it_was_with_the_age_that_it_has_now(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    batch = Batch(
        producer="p",
        incarnation=2**63 - 1,
        seq=3,
        events=[FirstToken(instance="é", ttft_ms=1.5, at=20)],
        view_ms=9,
        v=1,
    )
    spool.append([Entry(1_000, 50, 1, encode(batch))], ROOM)
    (one,) = opened(tmp_path).read(1)
    assert decode_batch(one.encoded(2_500.0, 60.0)) == Batch(
        producer="p", incarnation=2**63 - 1, seq=3, events=batch.events, view_ms=9, v=1, age_ms=1_500.0
    )


def test_the_age_is_the_larger_one_by_two_clocks_and_never_negative() -> None:
    one = Entry(wall_ms=10_000, mono_ms=4_000, events=1, record=b"")
    assert one.age_ms(12_000, 6_000) == 2_000
    assert one.age_ms(12_000, 100) == 2_000  # the machine was started anew
    assert one.age_ms(0, 6_000) == 2_000  # the clock was set back
    assert one.age_ms(0, 0) == 0
    assert one.age_ms(1e15, 0) == 1e9  # the wire's bound


def test_a_flipped_byte_costs_its_batch_only_and_the_segment_is_set_aside_with_a_line_that_says_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = opened(tmp_path)
    positions = spool.append([entry(n, 4) for n in range(40)], ROOM)
    spool.close()
    first = min(tmp_path.glob("*.segment"))
    inside = [end for number, end in positions if number == int(first.stem)]
    data = bytearray(first.read_bytes())
    data[inside[1] + 15] ^= 1
    first.write_bytes(data)
    spool = opened(tmp_path)
    assert (spool.records, spool.events, spool.damages, spool.lost_events) == (39, 156, 1, 4)
    assert f"{first} is damaged at byte {inside[1]}" in caplog.text
    assert drained(spool) == [n for n in range(40) if n != 2]
    assert [path.name for path in tmp_path.iterdir() if path.name != "cursor"] == [f"{first.stem}.corrupt"]
    assert (spool.records, spool.size, spool.lost_events) == (0, 0, 4)  # once, however often it is looked at


@pytest.mark.parametrize(
    ("start", "stop", "lost"),
    [
        (0, 4, 4),  # a mark
        (4, 8, 4),  # a length
        (28, 32, 1),  # how many events it has
        (12, 31, 1),
        (0, None, 1),  # all of a batch, head included: it may have been any
    ],
)
def test_of_what_was_bad_at_the_start_as_many_events_are_lost_as_its_remains_say(
    tmp_path: Path, start: int, stop: int | None, lost: int
) -> None:
    spool = opened(tmp_path)
    ends = [end for _, end in spool.append([entry(n, 4) for n in range(6)], ROOM)]
    spool.close()
    (path,) = tmp_path.glob("*.segment")
    data = bytearray(path.read_bytes())
    for first in (1, 3):
        place = slice(ends[first - 1] + start, ends[first] if stop is None else ends[first - 1] + stop)
        data[place] = b"\0" * (place.stop - place.start)
    path.write_bytes(data)
    spool = opened(tmp_path)
    assert (spool.lost_events, spool.damages) == (2 * lost, 1)
    assert drained(spool) == [0, 2, 4, 5]
    assert spool.lost_events == 2 * lost


def test_batches_side_by_side_that_are_bad_are_counted_one_by_one(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    ends = [end for _, end in spool.append([entry(n, n + 1) for n in range(6)], ROOM)]
    spool.close()
    (path,) = tmp_path.glob("*.segment")
    data = bytearray(path.read_bytes())
    for first in (1, 2, 3):
        data[ends[first] - 1] ^= 1
    path.write_bytes(data)
    assert opened(tmp_path).lost_events == 2 + 3 + 4


def test_what_goes_bad_after_it_was_counted_is_counted_as_lost(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append([entry(n, 4) for n in range(40)], ROOM)
    first = min(tmp_path.glob("*.segment"))
    data = bytearray(first.read_bytes())
    data[20] ^= 1
    first.write_bytes(data)
    assert drained(spool) == list(range(1, 40))
    assert (spool.lost_events, spool.damages, spool.records) == (4, 1, 0)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_file_cut_anywhere_or_flipped_anywhere_costs_what_was_there_and_nothing_else(draw: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spool = opened(folder)
        positions = spool.append([entry(n) for n in range(40)], ROOM)
        spool.close()
        path = draw.draw(st.sampled_from(sorted(folder.glob("*.segment"))))
        ends = [(n, end) for n, (number, end) in enumerate(positions) if number == int(path.stem)]
        data = bytearray(path.read_bytes())
        at = draw.draw(st.integers(0, len(data) - 1))
        if draw.draw(st.booleans()):
            lost = {n for n, end in ends if end > at}
            path.write_bytes(data[:at])
        else:
            lost = {min(n for n, end in ends if end > at)}
            data[at] ^= draw.draw(st.integers(1, 255))
            path.write_bytes(data)
        again = opened(folder)
        again.append([entry(40)], ROOM)
        assert drained(again) == [n for n in range(41) if n not in lost]


@pytest.mark.parametrize("content", [b"", b"\0" * 5_000, b"not a segment", b"\xc1EVS\xff\xff\xff\xff"])
def test_whatever_lies_in_the_folder_a_start_succeeds_and_what_is_good_is_sent(tmp_path: Path, content: bytes) -> None:
    opened(tmp_path).append([entry(n) for n in range(3)], ROOM)
    (tmp_path / "000000000000.segment").write_bytes(content)
    (tmp_path / "000000000009.segment").write_bytes(content)
    (tmp_path / "notes.segment").write_bytes(content)
    (tmp_path / "cursor").write_bytes(content)
    spool = opened(tmp_path)
    spool.append([entry(3)], ROOM)
    assert drained(spool) == [0, 1, 2, 3]
    assert spool.records == 0


def test_a_segment_that_vanishes_or_is_a_folder_is_left_out(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append([entry(n) for n in range(60)], ROOM)
    files = sorted(tmp_path.glob("*.segment"))
    assert len(files) > 2
    files[0].unlink()
    got = drained(spool)
    assert got == list(range(60 - len(got), 60))
    assert spool.lost_events == 60 - len(got) > 0
    (tmp_path / "000000000999.segment").mkdir()
    again = opened(tmp_path)
    assert again.lost_events == 1, "how many it had cannot be known"
    again.append([entry(1)], ROOM)
    assert drained(again) == [1]


def test_a_batch_that_this_version_cannot_read_is_left_out(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append([entry(0), Entry(1, 1, 5, b"\xc1 no batch"), entry(2)], ROOM)
    assert drained(spool) == [0, 2]
    assert spool.lost_events == 5
