"""The format of a segment file. Pure: bytes in, bytes out.

    segment = frame*
    frame   = MARK, length of the body (u32), CRC-32 of that length and the body (u32), body; little-endian

A process that is killed while it writes leaves a *torn* end: the first bytes of a frame and nothing after them. All
else that does not check is *damage*. After damage the reader goes on at the next frame that checks, so a bad byte costs
the one frame that it is in, wherever it is.
"""

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

MARK = b"\xc1EVS"  # 0xc1 starts nothing in MessagePack, which bodies consist of
BODY_BYTES_MAX = 1_000_000  # Kafka takes no larger records either
_HEAD = struct.Struct("<4sII")
_LENGTH = struct.Struct("<I")


class Frame(NamedTuple):
    """A body that checks, and where its frame lies."""

    start: int
    end: int
    body: bytes


class Damage(NamedTuple):
    """Bytes that are no frame; `torn` when they are what a killed writer leaves at the end."""

    start: int
    end: int
    torn: bool


def frame(body: bytes) -> bytes:
    """Return the frame of a body of at most `BODY_BYTES_MAX` bytes."""
    length = _LENGTH.pack(len(body))
    return _HEAD.pack(MARK, len(body), crc32(body, crc32(length))) + body


def read(data: bytes, start: int = 0) -> Iterator[Frame | Damage]:
    """Read what `data` has from `start` on, in order and without gaps; `start` is where a frame should begin."""
    at = start
    while at < len(data):
        end = _end(data, at)
        if end is not None:
            yield Frame(at, end, data[at + _HEAD.size : end])
            at = end
            continue
        following = _next(data, at + 1)
        yield Damage(at, following, following == len(data) and _torn(data, at))
        at = following


def remains(data: bytes, item: Damage) -> Iterator[bytes]:
    """Yield what is left of the bodies within damage: of one at its start, and one for each mark that is left."""
    starts = [item.start]
    while (at := data.find(MARK, starts[-1] + 1, item.end)) >= 0:
        starts.append(at)
    for start, end in pairwise([*starts, item.end]):
        yield data[start + _HEAD.size : end]


def _end(data: bytes, at: int) -> int | None:
    """Return the end of the frame at `at`; None if there is none."""
    if len(data) - at < _HEAD.size:
        return None
    mark, length, checksum = _HEAD.unpack_from(data, at)
    end = at + _HEAD.size + length
    if mark != MARK or length > BODY_BYTES_MAX or end > len(data):
        return None
    body = memoryview(data)[at + _HEAD.size : end]
    return end if crc32(body, crc32(_LENGTH.pack(length))) == checksum else None


def _next(data: bytes, at: int) -> int:
    """Return where the next frame begins; the end of the data if none does."""
    while (at := data.find(MARK, at)) >= 0:
        if _end(data, at) is not None:
            return at
        at += 1
    return len(data)


def _torn(data: bytes, at: int) -> bool:
    """Tell whether the rest is the first part of a frame."""
    rest = data[at : at + _HEAD.size]
    if not rest.startswith(MARK[: len(rest)]):
        return False
    return len(rest) < _HEAD.size or _HEAD.unpack(rest)[1] > len(data) - at - _HEAD.size
