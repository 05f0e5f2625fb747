"""Watched files: polled, because notifications miss network file systems and mounted ConfigMaps (swapped links).

A file is read when its time of change, size or inode differ from those read last and have stood still for one look:
whoever writes it in place is given time to finish. Replacing it by a rename is safe in any case.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from evenload.discovery.source import Found, Listener
from evenload.settings import SettingsError, SourceSettings
from evenload.settings.instance_files import read_instances

Stamp = tuple[int, int, int, int] | None


class WatchedFile:
    """Tells when a file is to be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: Stamp | str = ""  # nothing yet, which differs from a file that is not there
        self._seen: Stamp | str = ""

    def changed(self) -> bool:
        """Look; True the first time, and when the file has changed and has stood still since the last look."""
        now = _stamp(self.path)
        still = now == self._seen or self._read == ""
        self._seen = now
        if now == self._read or not still:
            return False
        self._read = now
        return True


class FileSource:
    """Instances from a file of one's own."""

    def __init__(self, source: SourceSettings, look_s: float) -> None:
        assert source.file is not None
        self._source = source
        self._path = source.file
        self._look_s = look_s

    async def run(self, listener: Listener) -> None:
        """Report what the file says, whenever it says something else."""

        def read() -> None:
            instances = read_instances(self._path, self._source)
            loop.call_soon_threadsafe(listener.found, [Found(instance) for instance in instances])

        loop = asyncio.get_running_loop()
        await follow(self._path, read, listener.failed, self._look_s)


async def follow(path: Path, read: Callable[[], None], failed: Callable[[str], None], look_s: float) -> None:
    """Call `read`, in a thread, when a file has changed, and `failed` with the reasons if that raises SettingsError."""
    watched = WatchedFile(path)
    while True:
        if await asyncio.to_thread(watched.changed):
            try:
                await asyncio.to_thread(read)
            except SettingsError as error:  # said once for each state of the file
                failed("; ".join(str(problem) for problem in error.problems))
        await asyncio.sleep(look_s)


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
