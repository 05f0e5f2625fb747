"""What operators have added and taken out by the admin API: one small file, written by routers, watched by everybody.

Written as a whole beside the old one and renamed, under a lock, so that a reader sees one or the other and two routers
of one machine do not undo each other's changes. JSON, which is YAML.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from evenload.settings import InstanceSettings, SettingsError
from evenload.settings.instance_files import ChangesFile, read_changes
from evenload.settings.problems import Problem

SETTING = "discovery.changes_file"


def change(path: Path, by: Callable[[ChangesFile], ChangesFile]) -> ChangesFile:
    """Replace what the file says by what `by` makes of it; returns that. May block.

    Raises:
        SettingsError: the file cannot be read, used or written; it is as it was.
    """
    try:
        with _locked(path):
            now = by(read_changes(path))
            _write(path, now)
    except OSError as error:
        reason = f"cannot be written: {error.strerror or error}"
        raise SettingsError([Problem(str(path), SETTING, reason)]) from error
    return now


def adding(pool: str, instance: InstanceSettings) -> Callable[[ChangesFile], ChangesFile]:
    """Return the change that adds an instance, or replaces one of that id."""

    def by(now: ChangesFile) -> ChangesFile:
        kept = tuple(one for one in now.added.get(pool, ()) if one.id != instance.id)
        return ChangesFile(added={**now.added, pool: (*kept, instance)}, removed=_without(now.removed, instance.id))

    return by


def removing(name: str) -> Callable[[ChangesFile], ChangesFile]:
    """Return the change that takes an instance out, whoever named it."""

    def by(now: ChangesFile) -> ChangesFile:
        added = {pool: tuple(one for one in some if one.id != name) for pool, some in now.added.items()}
        was_added = added != now.added
        removed = _without(now.removed, name)
        return ChangesFile(added=_filled(added), removed=removed if was_added else (*removed, name))

    return by


def restoring(name: str) -> Callable[[ChangesFile], ChangesFile]:
    """Return the change that no longer takes an instance out."""
    return lambda now: ChangesFile(added=now.added, removed=_without(now.removed, name))


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(one for one in names if one != name)


def _filled(added: dict[str, tuple[InstanceSettings, ...]]) -> dict[str, tuple[InstanceSettings, ...]]:
    return {pool: some for pool, some in added.items() if some}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with Path(f"{path}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(path: Path, content: ChangesFile) -> None:
    beside = Path(f"{path}.new")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(content.model_dump(mode="json", exclude_unset=True), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
