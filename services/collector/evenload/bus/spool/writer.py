"""The one file that is being appended to."""

import contextlib
import os
from pathlib import Path
from typing import Literal

Fsync = Literal["never", "interval", "always"]


class Writer:
    """Appends whole pieces to a new file, or nothing of them.

    Attributes:
        broken: a write failed and could not be taken back; the file must not be appended to any more.
    """

    def __init__(self, path: Path, fsync: Fsync) -> None:
        """Make the file.

        Raises:
            OSError: it cannot be made, or is there already.
        """
        self.broken = False
        self._fsync = fsync
        self._unsynced = False
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if fsync != "never":
            with contextlib.suppress(OSError):  # not every file system can
                _sync_folder(path.parent)

    def append(self, data: bytes, size: int) -> None:
        """Write a piece to the end, at `size`.

        Raises:
            OSError: nothing was written, or the file is broken.
        """
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
            if self._fsync == "always":
                os.fsync(self._descriptor)
        except OSError:
            try:
                os.ftruncate(self._descriptor, size)
            except OSError:
                self.broken = True
            raise
        self._unsynced = self._fsync != "always"

    def sync(self) -> None:
        """Force the file to the disk.

        Raises:
            OSError: that failed; what was written since the last time may be lost with the machine.
        """
        if self._unsynced:
            self._unsynced = False  # the system reports a failure once; a second try would only seem to succeed
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of it, forced to the disk unless the policy is `never`."""
        try:
            if self._fsync != "never":
                self.sync()
        finally:
            os.close(self._descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
