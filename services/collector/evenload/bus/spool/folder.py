"""All partitions of one process and topic on disk: one lock, one bound."""

import contextlib
import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evenload.bus.client_logs import limited_logger
from evenload.bus.spool.cursor import Position
from evenload.bus.spool.entry import Entry, Stored
from evenload.bus.spool.partition import CORRUPT, PartitionSpool
from evenload.bus.spool.writer import Fsync

log = limited_logger(__name__)

_SEGMENT_BYTES = (16_384, 4 * 1024 * 1024)
_SEGMENTS = 64  # so many fit below the bound, so that space comes back in small pieces
_CORRUPT_MAX = 4


class SpoolLocked(OSError):
    """Another process uses the folder."""


class Figures(NamedTuple):
    """What is on disk, for other threads to look at.

    Attributes:
        records, events, bytes: not acknowledged; bytes are those of whole segments.
        damaged_segments: with bytes that could not be read, since the start.
        lost_events: written, and then not to be read again; at least so many.
        waiting: partitions that have something to read.
        oldest: times of the oldest batch.
    """

    records: int = 0
    events: int = 0
    bytes: int = 0
    damaged_segments: int = 0
    lost_events: int = 0
    waiting: frozenset[int] = frozenset()
    oldest: Entry | None = None


class SpoolFolder:
    """The spool of a producer.

    Attributes:
        path: where it is.
        is_open: whether it can be used; else nothing is taken and nothing comes.
        figures: as of the last call, in one piece.
    """

    def __init__(self, path: Path, partitions: int, bytes_max: int, fsync: Fsync) -> None:
        """Describe it.

        Args:
            path: folder of its own, made if it is not there.
            partitions: of the topic.
            bytes_max: of all segments together.
            fsync: see `PartitionSpool`.
        """
        self.path = path
        self.is_open = False
        self.figures = Figures()
        self._bytes_max = bytes_max
        low, high = _SEGMENT_BYTES
        segment_bytes = min(max(bytes_max // _SEGMENTS, low), high)
        self._parts = [PartitionSpool(path / str(number), segment_bytes, fsync) for number in range(partitions)]
        self._lock: int | None = None

    def __repr__(self) -> str:
        return f"<SpoolFolder {self.path} open={self.is_open} {self.figures}>"

    def open(self) -> None:
        """Lock the folder and look at what an earlier process left.

        Raises:
            SpoolLocked: another process has it.
            OSError: it cannot be used.
        """
        if self.is_open:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.path / "lock")
        try:
            for part in self._parts:
                part.open()
        except OSError:
            self._unlock()
            raise
        self.is_open = True
        self._measure()
        foreign = [
            one.name for one in self.path.iterdir() if one.name.isdecimal() and int(one.name) >= len(self._parts)
        ]
        if foreign:
            log.warning(
                "spool: %s has partitions %s, which the topic has not; they stay there", self.path, ", ".join(foreign)
            )

    def append(self, entries: Mapping[int, Sequence[Entry]]) -> dict[int, list[Position]]:
        """Write entries by partition; returns where those end that were written, from the first of each on."""
        written: dict[int, list[Position]] = {}
        for partition, wanted in entries.items():
            written[partition] = []
            if not self.is_open:
                continue
            try:
                written[partition] = self._parts[partition].append(wanted, self._bytes_max - self._size())
            except OSError as error:
                log.warning("spool: cannot write to %s: %s", self.path, error.strerror or error)
        self._measure()
        return written

    def read(self, partition: int, bytes_max: int) -> list[Stored]:
        """Return the oldest entries of a partition."""
        found = self._parts[partition].read(bytes_max)
        self._tidy()
        self._measure()
        return found

    def acknowledge(self, partition: int, position: Position, records: int, events: int) -> None:
        """Forget the entries of a partition up to `position`."""
        self._parts[partition].acknowledge(position, records, events)
        self._tidy()
        self._measure()

    def sync(self) -> None:
        """Force to the disk what is not there yet."""
        for part in self._parts:
            try:
                part.sync()
            except OSError as error:
                log.warning("spool: fsync fails in %s: %s", self.path, error.strerror or error)

    def close(self) -> None:
        """Let go of it; what is there stays."""
        for part in self._parts:
            part.close()
        self._unlock()
        self.is_open = False

    def _size(self) -> int:
        return sum(part.size for part in self._parts)

    def _measure(self) -> None:
        oldest = [part.oldest for part in self._parts if part.oldest is not None]
        self.figures = Figures(
            records=sum(part.records for part in self._parts),
            events=sum(part.events for part in self._parts),
            bytes=self._size(),
            damaged_segments=sum(part.damages for part in self._parts),
            lost_events=sum(part.lost_events for part in self._parts),
            waiting=frozenset(number for number, part in enumerate(self._parts) if part),
            oldest=min(oldest, default=None),
        )

    def _tidy(self) -> None:
        """Keep only the newest of what was set aside."""
        corrupt = list(self.path.glob(f"*/*{CORRUPT}")) if any(part.damages for part in self._parts) else []
        with contextlib.suppress(OSError):
            for path in sorted(corrupt, key=lambda path: path.stat().st_mtime)[:-_CORRUPT_MAX]:
                path.unlink()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


def _lock(path: Path) -> int:
    """Lock a file for as long as this process has it open, however it ends; it holds the process id, for people."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise SpoolLocked(f"process {holder or 'unknown'} uses it") from None
    except OSError:
        os.close(descriptor)
        raise
    with contextlib.suppress(OSError):  # on a full disk, for instance
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
