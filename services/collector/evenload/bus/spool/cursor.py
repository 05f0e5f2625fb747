"""Up to where Kafka has acknowledged what a partition has on disk.

A shortcut: without it, or with an older one, some batches are sent again, and readers drop them by their sequence.
"""

import contextlib
import os
import struct
from pathlib import Path
from zlib import crc32

Position = tuple[int, int]  # number of a segment, and an offset in it

_PLACE = struct.Struct("<QQ")
_CHECKSUM = struct.Struct("<I")


class Cursor:
    """A position that only grows, kept in a file.

    Attributes:
        position: everything before it is acknowledged.
    """

    def __init__(self, path: Path) -> None:
        self.position: Position = (0, 0)
        self._path = path

    def load(self) -> None:
        """Read the file; one that is missing, damaged or unreadable says nothing."""
        with contextlib.suppress(OSError):
            data = self._path.read_bytes()
            place = data[: _PLACE.size]
            if data[_PLACE.size :] == _CHECKSUM.pack(crc32(place)):
                self.position = _PLACE.unpack(place)

    def advance(self, position: Position) -> None:
        """Move on, unless it is there already."""
        self.position = max(self.position, position)

    def save(self) -> None:
        """Write the file, as well as it goes."""
        place = _PLACE.pack(*self.position)
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(descriptor, place + _CHECKSUM.pack(crc32(place)), 0)
            finally:
                os.close(descriptor)
