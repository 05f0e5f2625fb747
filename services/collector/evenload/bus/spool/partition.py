"""The segment files of one partition: written at one end, read at the other, and deleted when acknowledged.

After a restart a new segment is begun, never an old one continued. What is damaged stays beside the segments, as
`.corrupt`, for people to look at.
"""

import contextlib
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evenload.bus.client_logs import limited_logger
from evenload.bus.spool.cursor import Cursor, Position
from evenload.bus.spool.entry import Entry, EntryError, Stored, events_of, stored, unpack
from evenload.bus.spool.segment import Damage, Frame, frame, read, remains
from evenload.bus.spool.writer import Fsync, Writer

log = limited_logger(__name__)

CORRUPT = ".corrupt"
_SUFFIX = ".segment"


@dataclass(slots=True)
class _Segment:
    """A file; `records` and `events` are those not acknowledged, `size` is what is known to be written."""

    number: int
    path: Path
    size: int = 0
    records: int = 0
    events: int = 0
    damaged: bool = False


class PartitionSpool:
    """The batches of one partition on disk.

    Attributes:
        records, events: on disk and not acknowledged.
        size: bytes of all its files.
        damages: segments with bytes that could not be read.
        lost_events: that were written and could not be read again. Of what was bad when the folder was opened, as many
            as its remains say, at least one for each stretch of it.
        oldest: times of the entry at the read end.
    """

    def __init__(self, folder: Path, segment_bytes: int, fsync: Fsync) -> None:
        """Describe it; `open` looks at what is there.

        Args:
            folder: of its own.
            segment_bytes: size from which on a new segment is begun.
            fsync: `always` after each append, `interval` when `sync` is called, or `never`.
        """
        self.damages = self.lost_events = 0
        self.oldest: Entry | None = None
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._fsync = fsync
        self._segments: deque[_Segment] = deque()
        self._writer: Writer | None = None  # of the newest segment
        self._cursor = Cursor(folder / "cursor")

    def __repr__(self) -> str:
        return f"<PartitionSpool {self._folder} records={self.records} bytes={self.size}>"

    def __bool__(self) -> bool:
        """Whether `read` has something to do."""
        return bool(self._segments)

    @property
    def records(self) -> int:
        """Batches that wait."""
        return sum(segment.records for segment in self._segments)

    @property
    def events(self) -> int:
        """Events that wait."""
        return sum(segment.events for segment in self._segments)

    @property
    def size(self) -> int:
        """Bytes of its segments."""
        return sum(segment.size for segment in self._segments)

    def open(self) -> None:
        """Take over what an earlier process left: cut torn ends off, and note damage; never fails for what it finds.

        Raises:
            OSError: the folder cannot be used.
        """
        self._segments.clear()
        self._cursor.load()
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            if path.stem.isdecimal():
                self._take_over(_Segment(int(path.stem), path))

    def append(self, entries: Sequence[Entry], room: int) -> list[Position]:
        """Write entries; returns where those end that found room, from the first on.

        Args:
            entries: newer than all that is there.
            room: bytes that may be written.

        Raises:
            OSError: nothing was written.
        """
        frames: list[bytes] = []
        for entry in entries:
            frames.append(frame(entry.packed()))
            room -= len(frames[-1])
            if room < 0:
                frames.pop()
                break
        positions: list[Position] = []
        while frames:
            try:
                segment, count = self._write(frames)
            except OSError:
                if not positions:
                    raise
                return positions  # those before are safe
            for data, entry in zip(frames[:count], entries[len(positions) :], strict=False):
                segment.size += len(data)
                segment.records += 1
                segment.events += entry.events
                self.oldest = self.oldest or _times(entry)
                positions.append((segment.number, segment.size))
            del frames[:count]
        return positions

    def read(self, bytes_max: int) -> list[Stored]:
        """Return the oldest entries, at least one if there is any; the same again until they are acknowledged."""
        found: list[Stored] = []
        while self._segments and not found:
            segment = self._segments[0]
            try:
                found = self._read(segment, bytes_max)
            except OSError as error:
                log.error("spool: %s cannot be read and is left out: %s", segment.path, error)
                self.damages += 1
                segment.damaged = True
            if not found:
                self._drop(segment)
        self.oldest = _times(found[0].entry) if found else None
        return found

    def acknowledge(self, position: Position, records: int, events: int) -> None:
        """Forget the entries up to `position`: so many records, with so many events."""
        self._cursor.advance(position)
        while self._segments and records:
            segment = self._segments[0]
            if segment.number < position[0]:  # the rest of it is damage, or acknowledged with these
                records, events = max(0, records - segment.records), max(0, events - segment.events)
                segment.records = segment.events = 0
                self._drop(segment)
                continue
            segment.records, segment.events = max(0, segment.records - records), max(0, segment.events - events)
            records = 0
            if segment.number == position[0] and position[1] >= segment.size:
                self._drop(segment)
        if not self._segments:
            self.oldest = None
        self._cursor.save()

    def sync(self) -> None:
        """Force what was appended to the disk.

        Raises:
            OSError: that failed.
        """
        if self._writer is not None:
            self._writer.sync()

    def close(self) -> None:
        """Let go of the files; forces them to the disk first unless the policy is `never`."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
        except OSError as error:
            log.warning("spool: fsync fails in %s: %s", self._folder, error.strerror or error)

    # ---- segments

    def _take_over(self, segment: _Segment) -> None:
        try:
            data = segment.path.read_bytes()
        except OSError as error:
            log.error("spool: %s cannot be read and is left out: %s", segment.path, error)
            self.damages += 1
            self.lost_events += 1
            return
        segment.size = len(data)
        for item in read(data, self._start(segment)):
            if isinstance(item, Frame):
                self._count(segment, item)
            elif item.torn:
                log.info("spool: %s: cut off at byte %d, where a write was broken off", segment.path, item.start)
                with contextlib.suppress(OSError):  # as well as it goes: a reader stops there all the same
                    os.truncate(segment.path, item.start)
                segment.size = item.start
            else:
                self._note_damage(segment, item, "no valid record")
                self.lost_events += sum(map(events_of, remains(data, item)))
        if segment.records or segment.damaged:
            self._segments.append(segment)
        else:
            with contextlib.suppress(OSError):
                segment.path.unlink()

    def _count(self, segment: _Segment, item: Frame) -> None:
        try:
            entry = unpack(item.body)
        except EntryError as error:
            self.lost_events += 1
            return self._note_damage(segment, item, str(error))
        self.oldest = self.oldest or _times(entry)
        segment.records += 1
        segment.events += entry.events
        return None

    def _read(self, segment: _Segment, bytes_max: int) -> list[Stored]:
        start = self._start(segment)
        with segment.path.open("rb") as file:
            file.seek(start)
            data = file.read(segment.size - start)
        found: list[Stored] = []
        size = 0
        for item in read(data):
            if isinstance(item, Damage):
                self._note_damage(segment, item, "no valid record", start)
                continue
            size += len(item.body)
            if found and size > bytes_max:
                break
            try:
                found.append(stored(unpack(item.body), segment.number, start + item.end))
            except EntryError as error:
                self._note_damage(segment, item, str(error), start)
        return found

    def _note_damage(self, segment: _Segment, item: Frame | Damage, reason: str, start: int = 0) -> None:
        if not segment.damaged:  # once: a segment is looked at more than once
            self.damages += 1
            log.error(
                "spool: %s is damaged at byte %d (%s) and will be set aside", segment.path, start + item.start, reason
            )
        segment.damaged = True

    def _start(self, segment: _Segment) -> int:
        number, offset = self._cursor.position
        return offset if number == segment.number else segment.size if number > segment.number else 0

    def _drop(self, segment: _Segment) -> None:
        """Take the oldest segment away; what it should still have had is lost."""
        assert segment is self._segments[0]
        self._segments.popleft()
        if not self._segments:
            self.close()
        self._cursor.advance((segment.number, segment.size))
        self.lost_events += segment.events
        try:
            if segment.damaged:
                segment.path.rename(segment.path.with_suffix(CORRUPT))
            else:
                segment.path.unlink(missing_ok=True)
        except OSError as error:
            log.error("spool: cannot remove %s, which has been sent: %s", segment.path, error)

    # ---- writing

    def _writable(self) -> tuple[_Segment, Writer]:
        """Return the segment to append to, a new one if there is none yet or it is full."""
        if self._writer is not None and self._segments[-1].size >= self._segment_bytes:
            self.close()
        if self._writer is None:
            self._folder.mkdir(exist_ok=True)
            number = 1 + max([self._cursor.position[0], *self._numbers()])
            path = self._folder / f"{number:012d}{_SUFFIX}"
            self._writer = Writer(path, self._fsync)
            self._segments.append(_Segment(number, path))
        return self._segments[-1], self._writer

    def _numbers(self) -> list[int]:
        """Return numbers that are in use, be it of a file that is only there to be looked at."""
        files = [int(path.stem) for path in self._folder.iterdir() if path.stem.isdecimal()]
        return files + [segment.number for segment in self._segments]

    def _write(self, frames: Sequence[bytes]) -> tuple[_Segment, int]:
        """Append as many frames as the segment takes, at least one; returns it and how many."""
        segment, writer = self._writable()
        count, size = 0, 0
        while count < len(frames) and (not count or segment.size + size < self._segment_bytes):
            size += len(frames[count])
            count += 1
        try:
            writer.append(b"".join(frames[:count]), segment.size)
        except OSError:
            if writer.broken or not segment.size:  # the next one begins a new segment
                self.close()
            if not segment.size:
                self._segments.pop()
                with contextlib.suppress(OSError):
                    segment.path.unlink()
            raise
        return segment, count


def _times(entry: Entry) -> Entry:
    return entry._replace(record=b"")
