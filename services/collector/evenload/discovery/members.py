"""From who is wanted and what the log believes to events of membership. Pure: time is an argument.

Wanted is what the sources say now; believed is what the scorer's snapshots say. `Members` compares the two, so nothing
depends on having been there when something changed:

    wanted  believed                            said
    yes     never heard of                      joined, generation 0
    yes     left                                joined, the next generation
    yes     an earlier process (`identity`)     joined, the next generation
    yes     draining because it was taken out   joined, same generation: it came back in time
    no      a member                            draining
    no      draining, no requests left          left; also after `leave_ms_max`
    no      silent for `FORGOTTEN_MS`           left: it was taken out while nobody of us was there to see it

A new generation starts at the warm-up score, and of events that are about an older one the fold only counts how many
there were. An operator's drain is none of our doing, so it is never ended here.

What was said is not said again for `RESTATE_MS`: snapshots lag. After that it is, if the log still disagrees; so
nothing is lost for good when Kafka was away. Who of several collectors speaks is the caller's business.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evenload.schemas import InstanceSnapshot, Membership

RESTATE_MS = 3_000.0
LEAVE_MS_MIN = 3_000.0  # by then each router has seen that it drains, and told what it still has under way
FORGOTTEN_MS = 600_000
UNHEARD_MS = 60_000.0  # of an instance that the scorer has dropped nothing is heard, else it is every 2 s

TAKEN_OUT = "taken_out"
SILENT = "silent"


class Difference(NamedTuple):
    """What changed between two sets of instances, each sorted by id.

    Attributes:
        joined: are new.
        left: are gone.
        replaced: have kept their name and are something else.
    """

    joined: tuple[str, ...]
    left: tuple[str, ...]
    replaced: tuple[str, ...]


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> Difference:
    """Compare two sets of instances, given as identity by id."""
    return Difference(
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(before.keys() - after.keys())),
        tuple(sorted(name for name in after.keys() & before.keys() if after[name] != before[name])),
    )


class _Believed(NamedTuple):
    """What the newest snapshot says of an instance, and when it came."""

    generation: int
    left: bool
    draining: bool
    idle: bool
    forgotten: bool
    heard_ms: float


@dataclass(slots=True)
class Members:
    """The instances of one collector, or one router, over time.

    Args:
        leave_ms_max: how long a drain may take.
    """

    leave_ms_max: float = 600_000.0
    _wanted: dict[str, str] = field(default_factory=dict)
    _leaving: dict[str, tuple[float, str]] = field(default_factory=dict)  # since when, and what it was
    _returned: dict[str, float] = field(default_factory=dict)  # since when
    _believed: dict[str, _Believed] = field(default_factory=dict)
    _least: dict[str, int] = field(default_factory=dict)  # generation from which it is the one that is wanted
    _told: dict[str, int] = field(default_factory=dict)  # generation that was said last
    _told_ms: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Members wanted={len(self._wanted)} leaving={sorted(self._leaving)}>"

    def want(self, wanted: Mapping[str, str], now_ms: float) -> Difference:
        """Take who is to belong to the fleet, as identity by id; returns what that changes."""
        found = difference(self._wanted, wanted)
        for name in found.left:
            self._leaving[name] = now_ms, self._wanted[name]
            self._returned.pop(name, None)
        for name in found.joined:
            _, identity = self._leaving.pop(name, (0.0, ""))
            if identity == wanted[name]:
                self._returned[name] = now_ms
            elif identity:
                self._renew(name)
        for name in found.replaced:
            self._renew(name)
        self._wanted = dict(wanted)
        return found

    def generation(self, name: str) -> int:
        """Return the generation of which events are to be told now."""
        believed = self._believed.get(name)
        return max(0 if believed is None else believed.generation, self._told.get(name, 0))

    def unsettled(self) -> Iterable[str]:
        """Return those of which there may be something to say though no snapshot of them comes."""
        unheard = (name for name in self._wanted if name not in self._believed)
        return sorted({*unheard, *self._leaving, *self._returned, *self._least})

    def on_snapshot(self, item: InstanceSnapshot, log_ms: int, now_ms: float) -> bool:
        """Take what the scorer believes of an instance; this is what a collector does most.

        Args:
            item: from its newest snapshot.
            log_ms: log time of that snapshot.
            now_ms: monotonic.

        Returns:
            Whether there may be something to say of it.
        """
        state = item.state
        name, left, generation = state.instance, state.left_ms is not None, state.generation
        # Of a provider nobody polls gauges, and it may have no traffic for hours.
        silent = log_ms - state.log_ms >= FORGOTTEN_MS and not item.replicas and state.gauges_ms is not None
        self._believed[name] = _Believed(generation, left, state.draining, item.in_flight == 0, silent, now_ms)
        if self._leaving and left and generation >= self._told.get(name, 0):
            self._leaving.pop(name, None)
        if self._least and generation >= self._least.get(name, 0):
            self._least.pop(name, None)
        if self._returned and not state.draining and now_ms - self._returned.get(name, now_ms) >= RESTATE_MS:
            del self._returned[name]  # whoever drains it from now on is not us
        return left or name not in self._wanted or name in self._least or name in self._returned

    def due(self, name: str, now_ms: float, *, heard: bool) -> Membership | None:
        """Return what is to be said of an instance now; it counts as said.

        Args:
            name: of the instance.
            now_ms: monotonic.
            heard: whether the log has been heard for long enough that it would have spoken of every instance.
        """
        told_ms = self._told_ms.get(name)
        if told_ms is not None and now_ms - told_ms < RESTATE_MS:
            return None
        event = self._joins(name, heard) if name in self._wanted else self._leaves(name, now_ms)
        if event is not None:
            self._told[name], self._told_ms[name] = event.gen, now_ms
        return event

    def prune(self, now_ms: float) -> None:
        """Forget instances of which nobody speaks any more; call it now and then."""
        for name in [name for name, one in self._believed.items() if now_ms - one.heard_ms >= UNHEARD_MS]:
            if name not in self._wanted:
                del self._believed[name]
        for name in [name for name, (since_ms, _) in self._leaving.items() if now_ms - since_ms >= UNHEARD_MS]:
            if name not in self._believed:
                del self._leaving[name]  # the log does not speak of it
        for name in [name for name, told_ms in self._told_ms.items() if now_ms - told_ms >= UNHEARD_MS]:
            if name not in self._wanted and name not in self._believed:
                del self._told[name], self._told_ms[name]
        for name in [name for name in self._least if name not in self._wanted]:
            del self._least[name]

    def _renew(self, name: str) -> None:
        self._returned.pop(name, None)
        self._least[name] = self.generation(name) + 1

    def _joins(self, name: str, heard: bool) -> Membership | None:
        believed, least = self._believed.get(name), self._least.get(name, 0)
        if believed is None:
            return _joined(name, max(least, self._told.get(name, 0))) if heard else None
        if believed.left or believed.generation < least:
            return _joined(name, max(believed.generation + 1, least, self._told.get(name, 0)))
        if name in self._returned:
            self._returned.pop(name, None)
            return _joined(name, believed.generation) if believed.draining else None
        return None

    def _leaves(self, name: str, now_ms: float) -> Membership | None:
        believed = self._believed.get(name)
        if believed is None or believed.left:
            return None
        if name not in self._leaving:
            return _left(name, self.generation(name), SILENT) if believed.forgotten else None
        if not believed.draining:
            return Membership(instance=name, gen=self.generation(name), change="draining", cause=TAKEN_OUT)
        since_ms, _ = self._leaving[name]
        spent_ms = now_ms - since_ms
        if spent_ms >= self.leave_ms_max or (believed.idle and spent_ms >= LEAVE_MS_MIN):
            return _left(name, self.generation(name), TAKEN_OUT)
        return None


def _joined(name: str, generation: int) -> Membership:
    return Membership(instance=name, gen=generation, change="joined")


def _left(name: str, generation: int, cause: str) -> Membership:
    return Membership(instance=name, gen=generation, change="left", cause=cause)
