"""A batch as it waits on disk: the record of the wire, and when it was opened by two clocks.

Its age must be true after a restart of the process or the machine: by the monotonic clock, which a restart of the
machine sets back, and by the host's clock, which may be set. The larger of the two is never less than the truth
unless the host's clock was set back during a reboot; a batch that looks older than it is changes counters only.
"""

import struct
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from evenload.schemas import encode
from evenload.schemas.telemetry import MILLISECONDS_MAX

_TIMES = struct.Struct("<QQI")


class EntryError(ValueError):
    """A body that is no entry."""


class _Kept(Struct, omit_defaults=True, tag_field="type", tag="batch"):
    """A Batch, with events as the bytes that they are."""

    producer: str
    incarnation: int
    seq: int
    events: Raw
    age_ms: float = 0.0
    view_ms: int = 0
    v: int = 0


_decode = msgspec.msgpack.Decoder(_Kept).decode


class Entry(NamedTuple):
    """One batch.

    Attributes:
        wall_ms, mono_ms: when it was opened, by the host's clock and by the monotonic one.
        events: how many it has.
        record: as on the wire, its age not filled in.
    """

    wall_ms: int
    mono_ms: int
    events: int
    record: bytes

    def packed(self) -> bytes:
        """Return the body of its frame."""
        return _TIMES.pack(max(0, self.wall_ms), max(0, self.mono_ms), self.events) + self.record

    def age_ms(self, wall_ms: float, mono_ms: float) -> float:
        """Return how long ago it was opened."""
        return min(max(0.0, wall_ms - self.wall_ms, mono_ms - self.mono_ms), MILLISECONDS_MAX)


class Stored(NamedTuple):
    """An entry that was read, ready to be sent.

    Attributes:
        segment, end: the place after it, in its partition.
    """

    entry: Entry
    batch: _Kept
    segment: int
    end: int

    def encoded(self, wall_ms: float, mono_ms: float) -> bytes:
        """Return the record, with the age it has now."""
        self.batch.age_ms = round(self.entry.age_ms(wall_ms, mono_ms), 1)
        return encode(self.batch)


def unpack(body: bytes) -> Entry:
    """Read the body of a frame.

    Raises:
        EntryError: it is too short.
    """
    if len(body) < _TIMES.size:
        raise EntryError(f"{len(body)} bytes")
    wall_ms, mono_ms, events = _TIMES.unpack_from(body)
    return Entry(wall_ms, mono_ms, events, body[_TIMES.size :])


def events_of(body: bytes) -> int:
    """Return how many events a damaged body says that it had; 1 if that cannot be, for none is written without any."""
    if len(body) < _TIMES.size:
        return 1
    events: int = _TIMES.unpack_from(body)[2]
    return events if 0 < events <= len(body) else 1


def stored(entry: Entry, segment: int, end: int) -> Stored:
    """Read the record of an entry.

    Raises:
        EntryError: it is no batch.
    """
    try:
        return Stored(entry, _decode(entry.record), segment, end)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EntryError(str(error)) from error
