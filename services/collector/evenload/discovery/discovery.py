"""All sources of all pools, followed: whenever they say something else, the settings as they are now are handed on.

Those are the settings of the file with, per pool, the instances that sources have found and operators have added, less
those that operators have taken out. Whoever reads settings needs to know nothing of sources.
"""

import asyncio
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from evenload.bus.forever import Forever
from evenload.discovery.source import Found, Source
from evenload.discovery.watched import FileSource, follow
from evenload.settings import DiscoverySettings, InstanceSettings, PoolSettings, Settings, SettingsError, SourceSettings
from evenload.settings.discovery import qualified
from evenload.settings.instance_files import ChangesFile, read_changes
from evenload.settings.load import NoKey, key_of
from evenload.settings.pools import WEIGHED

log = logging.getLogger(__name__)

SETTLE_S = 0.2  # changes within it are one change: a deployment replaces many instances in a moment
ID_LENGTH_MAX = 128  # as in a list


class Key(NamedTuple):
    """Names a source: its pool, and what the settings say of it, as text; both empty for operators' changes."""

    pool: str = ""
    text: str = ""


@dataclass(slots=True)
class Slot:
    """What one source has said.

    Attributes:
        pool: whose source it is, None for the file of operators' changes.
        source: its settings, likewise.
        instances: those it found last, with their ids in telemetry; None before.
        failing: why it says nothing, empty while it does.
        failures: how often that was.
    """

    changed: Callable[[], None]
    pool: PoolSettings | None = None
    source: SourceSettings | None = None
    instances: tuple[Found, ...] | None = None
    failing: str = ""
    failures: int = 0
    task: Forever | None = None

    @property
    def label(self) -> str:
        """Name for people and metrics."""
        return "changes" if self.source is None else self.source.label

    @property
    def where(self) -> str:
        """The same with the pool."""
        return self.label if self.pool is None else f"pool {self.pool.name}: {self.label}"

    def found(self, instances: Sequence[Found]) -> None:
        """Take what there is now, all or nothing."""
        assert self.pool is not None
        now = tuple(sorted((_named(self.pool.name, one) for one in instances), key=lambda one: one.instance.id))
        if problem := next(filter(None, (unfit(self.pool, one.instance) for one in now)), ""):
            self.failed(problem)
            return
        self.answered()
        if now != self.instances:
            self.instances = now
            self.changed()

    def answered(self) -> None:
        """Note that it says something again."""
        if self.failing:
            log.info("%s: works again", self.where)
            self.failing = ""

    def failed(self, reason: str) -> None:
        """Note that nothing can be said now."""
        self.failures += 1
        was, self.failing = self.failing, reason
        if reason != was:
            last = "nothing was found before" if self.instances is None else f"{len(self.instances)} instances stay"
            log.error("%s: %s (%s)", self.where, reason, "what was read last stays" if self.pool is None else last)


@dataclass(slots=True)
class Discovery:
    """Follows the sources of some settings.

    Args:
        settings: as the file has them.
        apply: takes the settings as they are now, in the event loop; SettingsError leaves things as they were.
        changes: what operators want, read from their file.
        applied, refused: changes of the instances that were taken over, and that could not be.
        refusal: why the last one could not be, empty if it was.
        ready_only: whether instances that their source calls not ready are left out, unless all of a source are.
    """

    settings: Settings
    apply: Callable[[Settings], None]
    ready_only: bool = False
    changes: ChangesFile = field(default_factory=ChangesFile)
    applied: int = 0
    refused: int = 0
    refusal: str = ""
    _slots: dict[Key, Slot] = field(default_factory=dict)
    _ending: set[asyncio.Task[None]] = field(default_factory=set)
    _timer: asyncio.TimerHandle | None = None
    _running: bool = False

    def __post_init__(self) -> None:
        """Read the file of operators' changes, and see that what the sources need is installed.

        Raises:
            ModuleNotFoundError: a package of an extra is missing.
            SettingsError: the file of changes is bad.
        """
        self._slots = self._slots_of(self.settings)
        self.changes = _changes_of(self.settings)

    @property
    def waiting(self) -> list[str]:
        """Sources that have not said anything yet."""
        return [
            slot.where for slot in self._slots.values() if slot.pool and slot.instances is None and not slot.failing
        ]

    @property
    def tasks(self) -> list[Forever]:
        """What follows the sources."""
        return [slot.task for slot in self._slots.values() if slot.task is not None]

    @property
    def slots(self) -> list[Slot]:
        """All sources."""
        return list(self._slots.values())

    def start(self) -> None:
        """Begin to follow; in the event loop."""
        self._running = True
        for slot in self._slots.values():
            if slot.task is None:
                slot.task = Forever(slot.where, partial(self._follow, slot))

    async def close(self) -> None:
        """Stop following."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*(task.stop() for task in self.tasks), *self._ending)

    def merged(self) -> Settings:
        """Return the settings with the instances that are known now."""
        before, now = self.settings.pools, tuple(self._pool(pool) for pool in self.settings.pools)
        unchanged = all(new is old for new, old in zip(now, before, strict=True))
        return self.settings if unchanged else self.settings.model_copy(update={"pools": now})

    def origins(self) -> dict[str, str]:
        """Return where each instance comes from: `list`, the source's label, or `changes`."""
        found = {one.id: "changes" for some in self.changes.added.values() for one in some}
        found |= {one.instance.id: slot.label for slot in self._slots.values() for one in slot.instances or ()}
        return found | {one.id: "list" for pool in self.settings.pools for one in pool.instances}

    def marks(self) -> dict[str, str]:
        """Return what tells processes under one id apart, where sources know it."""
        return {one.instance.id: one.mark for slot in self._slots.values() for one in slot.instances or () if one.mark}

    def reconfigure(self, settings: Settings, apply: Callable[[Settings], None] | None = None) -> None:
        """Go over to other settings; sources that are the same are followed on.

        Args:
            settings: as the file has them.
            apply: takes them, with what has been found, instead of the usual one.

        Raises:
            ModuleNotFoundError, SettingsError: they cannot be taken; nothing has changed.
        """
        slots, changes = self._slots_of(settings), _changes_of(settings)
        same = settings.discovery == self.settings.discovery
        for key, slot in self._slots.items():
            if key in slots and same and slots[key].pool == slot.pool:
                slots[key] = slot
            elif key in slots:
                slots[key].instances = slot.instances  # until it has looked itself
        before = self.settings, self._slots, self.changes
        self.settings, self._slots, self.changes = settings, slots, changes
        try:
            (apply or self.apply)(self.merged())
        except BaseException:
            self.settings, self._slots, self.changes = before
            raise
        for key, slot in before[1].items():
            if slots.get(key) is not slot:
                self._end(slot)
        if self._running:
            self.start()

    def take_changes(self, changes: ChangesFile) -> None:
        """Take what operators want now, at once."""
        if changes != self.changes:
            self.changes = changes
            self._apply()

    def _changed(self) -> None:
        if self._timer is None and self._running:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._apply)

    def _apply(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self.apply(self.merged())
        except SettingsError as error:
            self.refused += 1
            self.refusal = str(error)
            for problem in error.problems:
                log.error("instances are not taken over, nothing has changed: %s", problem)
        else:
            self.applied += 1
            self.refusal = ""

    def _slots_of(self, settings: Settings) -> dict[Key, Slot]:
        slots = {
            Key(pool.name, source.model_dump_json()): Slot(self._changed, pool, source)
            for pool in settings.pools
            for source in pool.discovery
        }
        kinds = {slot.source.kind for slot in slots.values() if slot.source is not None}
        if "kubernetes" in kinds and importlib.util.find_spec("kubernetes_asyncio") is None:
            raise ModuleNotFoundError("No module named 'kubernetes_asyncio'", name="kubernetes_asyncio")
        return slots if settings.discovery.changes_file is None else {**slots, Key(): Slot(self._changed)}

    def _end(self, slot: Slot) -> None:
        if slot.task is not None:
            ending = asyncio.get_running_loop().create_task(slot.task.stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _follow(self, slot: Slot) -> None:
        try:
            await self._run(slot)
        except Exception as error:
            slot.failed(f"{type(error).__name__}: {error}")  # nobody waits for a source that cannot even ask
            raise

    async def _run(self, slot: Slot) -> None:
        own = self.settings.discovery
        if slot.source is not None and slot.pool is not None:
            await _source(slot.source, slot.pool, own).run(slot)
            return
        assert own.changes_file is not None
        loop = asyncio.get_running_loop()

        def take(changes: ChangesFile) -> None:
            slot.answered()
            self.take_changes(changes)

        def read() -> None:
            loop.call_soon_threadsafe(take, _changes_of(self.settings))

        await follow(own.changes_file, read, slot.failed, own.look_s)

    def _pool(self, pool: PoolSettings) -> PoolSettings:
        removed = frozenset(self.changes.removed)
        instances = {one.id: one for one in pool.instances}
        for key, slot in self._slots.items():
            if key.pool == pool.name:  # of operators' changes it is empty
                for one in self._usable(slot.instances or ()):
                    instances.setdefault(one.id, one)
        for one in self.changes.added.get(pool.name, ()):
            instances.setdefault(one.id, one)
        kept = tuple(one for name, one in instances.items() if name not in removed)
        return pool if kept == pool.instances else pool.model_copy(update={"instances": kept})

    def _usable(self, found: Sequence[Found]) -> Iterator[InstanceSettings]:
        some_ready = self.ready_only and any(one.ready for one in found)
        for one in found:
            if one.ready or not some_ready:
                yield one.instance


def _source(source: SourceSettings, pool: PoolSettings, own: DiscoverySettings) -> Source:
    """Make what follows a source; what a kind needs is imported only where it is used."""
    match source.kind:
        case "file":
            return FileSource(source, own.look_s)
        case "kubernetes":
            from evenload.discovery.kubernetes import KubernetesSource

            return KubernetesSource(source)
        case _:
            from evenload.discovery.dns_names import DnsSource

            return DnsSource(source, (own.ttl_s_min, own.ttl_s_max), weighed=pool.policy in WEIGHED)


def _changes_of(settings: Settings) -> ChangesFile:
    path = settings.discovery.changes_file
    return ChangesFile() if path is None else read_changes(path)


def _named(pool: str, one: Found) -> Found:
    return one._replace(instance=one.instance.model_copy(update={"id": qualified(pool, one.instance.id)}))


def unfit(pool: PoolSettings, instance: InstanceSettings) -> str:
    """Say why an instance cannot be in a pool, as the settings would of one in the list."""
    if len(instance.id) > ID_LENGTH_MAX:
        return f"{instance.id!r:.80} is longer than {ID_LENGTH_MAX} with its pool in front"
    if instance.weight != 1 and pool.policy not in WEIGHED:
        return f"{instance.id!r} has a weight, and policy {pool.policy} knows none; {', '.join(sorted(WEIGHED))} do"
    try:  # or this process could take over no settings at all, those of other sources included
        key_of(instance, os.environ)
        if instance.ca_file is not None:
            instance.ca_file.open("rb").close()
    except NoKey as missing:
        return f"the key of {instance.id!r} ({missing.source}) {missing.reason}"
    except OSError as error:
        return f"{instance.id!r}: ca_file {instance.ca_file} cannot be read: {error.strerror or type(error).__name__}"
    return ""
