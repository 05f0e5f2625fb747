"""The spool of a producer: one process at a time, a bound for all partitions, and disks that do not play along."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evenload.bus.spool.entry import Entry
from evenload.bus.spool.folder import SpoolFolder, SpoolLocked
from evenload.schemas import Batch, FirstToken, decode_batch, encode

ROOT = Path(__file__).parents[3]
MIB = 1024 * 1024


def entry(seq: int, size: int = 0) -> Entry:
    token = FirstToken(instance="gpu-1", ttft_ms=float(seq))
    batch = Batch(producer="p" * 255, incarnation=seq, seq=seq, events=[token] * (1 + size // 40), v=1)
    return Entry(1_000, 1_000, len(batch.events), encode(batch))


@contextmanager
def folder(path: Path, bytes_max: int = MIB, partitions: int = 4, fsync: str = "never") -> Iterator[SpoolFolder]:
    one = SpoolFolder(path, partitions, bytes_max, fsync)  # type: ignore[arg-type]
    one.open()
    try:
        yield one
    finally:
        one.close()


def test_partitions_are_apart_and_all_of_it_is_there_after_a_restart(tmp_path: Path) -> None:
    with folder(tmp_path) as one:
        assert one.figures.waiting == frozenset()
        written = one.append({0: [entry(0), entry(1)], 3: [entry(2)]})
        assert {partition: len(places) for partition, places in written.items()} == {0: 2, 3: 1}
    with folder(tmp_path) as one:
        assert (one.figures.records, one.figures.waiting) == (3, frozenset({0, 3}))
        assert one.figures.oldest is not None
        assert [[stored.batch.seq for stored in one.read(partition, MIB)] for partition in range(4)] == [
            [0, 1],
            [],
            [],
            [2],
        ]
        last = one.read(3, MIB)[-1]
        one.acknowledge(3, (last.segment, last.end), 1, 1)
        assert (one.figures.records, one.figures.waiting) == (2, frozenset({0}))


def test_a_second_process_does_not_get_a_folder_that_is_in_use_and_does_when_the_first_is_gone(tmp_path: Path) -> None:
    with folder(tmp_path) as one:
        other = SpoolFolder(tmp_path, 4, MIB, "never")
        with pytest.raises(SpoolLocked, match=f"process {os.getpid()} uses it"):
            other.open()
        assert other.append({0: [entry(0)]}) == {0: []}
        one.append({0: [entry(1)]})
    other.open()
    assert other.figures.records == 1
    other.close()


def test_the_bound_holds_for_all_partitions_together_and_space_comes_back(tmp_path: Path) -> None:
    with folder(tmp_path, MIB) as one:
        seq = 0
        full = False
        while not full:
            written = one.append({partition: [entry(seq + partition, 3_000)] for partition in range(4)})
            full = not all(written.values())
            seq += 4
        assert one.figures.bytes <= MIB < one.figures.bytes + 4 * 5_000
        assert sum(path.stat().st_size for path in tmp_path.glob("*/*.segment")) == one.figures.bytes
        group = one.read(0, 100_000)
        one.acknowledge(0, (group[-1].segment, group[-1].end), len(group), sum(one.entry.events for one in group))
        assert one.append({1: [entry(seq, 3_000)]})[1]


@pytest.mark.parametrize("fsync", ["never", "interval", "always"])
def test_each_fsync_policy_writes(tmp_path: Path, fsync: str) -> None:
    with folder(tmp_path, fsync=fsync) as one:
        assert one.append({0: [entry(0)]})[0]
        one.sync()
        assert [stored.batch.seq for stored in one.read(0, MIB)] == [0]


def test_partitions_that_the_topic_has_no_more_stay_and_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with folder(tmp_path, partitions=4) as one:
        one.append({3: [entry(0)]})
    with folder(tmp_path, partitions=2) as one:
        assert one.figures.records == 0
        assert "partitions 3, which the topic has not" in caplog.text
    with folder(tmp_path, partitions=4) as one:
        assert one.figures.records == 1


def test_a_folder_that_cannot_be_made_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        SpoolFolder(tmp_path / "file" / "spool", 4, MIB, "never").open()


def test_only_the_newest_few_files_that_were_set_aside_are_kept(tmp_path: Path) -> None:
    for round_ in range(7):
        with folder(tmp_path) as one:
            one.append({0: [entry(2 * round_), entry(2 * round_ + 1)]})
            (path,) = tmp_path.glob("0/*.segment")
            data = bytearray(path.read_bytes())
            data[30] ^= 1
            path.write_bytes(data)
            group = one.read(0, MIB)
            one.acknowledge(0, (group[-1].segment, group[-1].end), 1, 1)
    kept = sorted(path.name for path in tmp_path.glob("0/*.corrupt"))
    assert kept == [f"{number:012d}.corrupt" for number in (4, 5, 6, 7)]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tests.bus.spool.test_folder import entry, folder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
with folder(Path(sys.argv[1]), 64 * 1024 * 1024) as one:
    taken = [len(one.append({0: [entry(n, 3_000)]})[0]) for n in range(40)]
    assert taken[:3] == [1] * 3 and taken[-1] == 0, taken
    size = one.figures.bytes
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert size == sum(path.stat().st_size for path in Path(sys.argv[1]).glob("0/*.segment")) <= 20_000
    assert len(one.append({0: [entry(99, 3_000)]})[0]) == 1
    print([stored.batch.seq for stored in one.read(0, 10**9)], taken.count(1))
"""


def test_a_write_that_the_system_cuts_short_is_taken_back_and_the_next_one_works_when_there_is_room(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    numbers, taken = done.stdout.rsplit(" ", 1)
    assert numbers == str([*range(int(taken)), 99])
    assert "cannot write to" in done.stderr


WRITER = """
import sys
from pathlib import Path
from tests.bus.spool.test_folder import entry, folder
with folder(Path(sys.argv[1]), 1 << 30) as one:
    seq = 0
    while True:
        one.append({seq % 4: [entry(seq, 8_000)]})
        sys.stdout.write(f"{seq}\\n")
        sys.stdout.flush()
        seq += 1
"""


@pytest.mark.parametrize("after", [1, 30, 200, 500])
def test_kill_9_while_writing_loses_nothing_that_was_written_and_frees_the_lock(tmp_path: Path, after: int) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert writer.stdout is not None
    told = -1
    for line in writer.stdout:
        told = int(line)
        if told >= after:
            break
    writer.send_signal(signal.SIGKILL)
    told = max([told, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    writer.wait()
    writer.stdout.close()
    got: list[int] = []
    with folder(tmp_path, 1 << 30) as one:
        assert one.figures.damaged_segments == 0
        for partition in range(4):
            numbers = []
            while group := one.read(partition, 50_000):
                numbers += [decode_batch(stored.encoded(0, 0)).seq for stored in group]
                events = sum(stored.entry.events for stored in group)
                one.acknowledge(partition, (group[-1].segment, group[-1].end), len(group), events)
            assert numbers == sorted(numbers)
            got += numbers
    assert sorted(got) in (list(range(told + 1)), list(range(told + 2)))  # one more may be written than was told
