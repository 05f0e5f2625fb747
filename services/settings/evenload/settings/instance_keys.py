"""The key of an instance: what is sent, and where it comes from. Never logged, never part of an error or a page."""

import logging
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class FixedKey:
    """A key that does not change."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __repr__(self) -> str:
        return "FixedKey(...)"

    def current(self) -> str:
        """Return the key."""
        return self._key


class FileKey:
    """A key in a file, read again when the file has changed; looked at once a second, by time of change and inode.

    Args:
        path: of the file.
        key: what was read at the start.
        read: reads the file; OSError or ValueError where there is no key in it.
        clock: monotonic seconds.
    """

    def __init__(self, path: Path, key: str, read: Callable[[Path], str], clock: Callable[[], float]) -> None:
        self._path = path
        self._key = key
        self._read = read
        self._clock = clock
        self._look_at_s = clock() + LOOK_EVERY_S
        self._seen = self._state()

    def __repr__(self) -> str:
        return f"FileKey({self._path})"

    def current(self) -> str:
        """Return the key; the last good one while the file is gone or has none in it."""
        now_s = self._clock()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            state = self._state()
            if state != self._seen:
                self._seen = state
                self._reread()
        return self._key

    def _reread(self) -> None:
        try:
            self._key = self._read(self._path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            log.warning("the key in %s cannot be used (%s); the last one stays in use", self._path, reason)
        else:
            log.info("the key in %s has been read again", self._path)

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


Key = FixedKey | FileKey
