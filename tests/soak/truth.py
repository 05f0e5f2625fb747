"""The pure fold of the log, beside everything that the scorers said: states and snapshots, bit for bit."""

from collections.abc import Callable, Iterable

from evenload.bus.log_reader import read_log
from evenload.schemas import InstanceState, SnapshotBatch, decode_batch, decode_state, encode
from evenload.scoring import ScoringConfig, fold, snapshot
from tests.soak.readers import State


class Difference(AssertionError):
    """Something is not what the log says. The message has the instance and both values."""


class Truth:
    """Folds the log by and by.

    Attributes:
        states: of all instances, after all that was read.
        records: of telemetry, read so far.
        verified: states and snapshots compared.
    """

    def __init__(self, bootstrap: str, topic: str, config_of: Callable[[str], ScoringConfig]) -> None:
        self.states: dict[str, InstanceState] = {}
        self.records = 0
        self.verified = 0
        self._bootstrap = bootstrap
        self._topic = topic
        self._config_of = config_of
        self._next: dict[int, int] = {}
        self._at: dict[int, dict[str, InstanceState]] = {}

    async def read_on(self, states: Iterable[State], snapshots: Iterable[SnapshotBatch]) -> None:
        """Fold what is new in the log; on the way compare states and snapshots that were made from it.

        Raises:
            Difference: the first one, in the order of the log.
        """
        wanted = _by_offset(states, snapshots)
        for partition, place in list(wanted):
            if place < self._next.get(partition, 0):
                self._compare(partition, place, wanted.pop((partition, place)))
        async for record in read_log(self._bootstrap, self._topic, first=self._next):
            own = self._at.setdefault(record.partition, {})
            changed = fold(own, decode_batch(record.value or b""), record.offset, record.timestamp_ms, self._config_of)
            own.update(changed)
            self.states.update(changed)
            self._next[record.partition] = record.offset + 1
            self.records += 1
            self._compare(record.partition, record.offset, wanted.pop((record.partition, record.offset), ()))
        for (partition, offset), said in wanted.items():
            if said:
                raise Difference(
                    f"partition {partition}: {said[0]!r} is as of offset {offset}, which is not in the log"
                )

    def _compare(self, partition: int, offset: int, said: "Iterable[State | SnapshotBatch]") -> None:
        for one in said:
            if isinstance(one, SnapshotBatch):
                for item in one.snapshots:
                    name = item.state.instance
                    want = self._known(partition, name, offset)
                    if want is not None:
                        wanted = snapshot(want, one.now_ms, self._config_of(name))
                        self._same(f"snapshot of {name} as of {offset} at {one.now_ms}", item, wanted)
            else:
                want = self._known(partition, one[1], offset)
                if want is not None:
                    self._same(f"state of {one[1]} as of {offset}", decode_state(one[2]), want)

    def _known(self, partition: int, name: str, offset: int) -> InstanceState | None:
        """Return the fold of an instance up to `offset`; None if it has gone on since."""
        state = self._at.get(partition, {}).get(name)
        if state is None:
            raise Difference(f"{name} is known as of offset {offset} of partition {partition}, but the log has no such")
        return state if state.as_of <= offset else None

    def _same(self, what: str, said: object, want: object) -> None:
        self.verified += 1
        if encode(said) != encode(want):
            raise Difference(difference(what, said, want))


def difference(what: str, said: object, want: object) -> str:
    """Say how two structs differ, of which the bytes do."""
    fields = getattr(type(want), "__struct_fields__", ())
    different = [name for name in fields if getattr(said, name, None) != getattr(want, name)]
    where = ", ".join(different) or "only the bytes: were they written by other code?"
    return f"{what} differs in {where}:\n  scorer says {said!r}\n  the log says {want!r}"


def _by_offset(
    states: Iterable[State], snapshots: Iterable[SnapshotBatch]
) -> "dict[tuple[int, int], list[State | SnapshotBatch]]":
    found: dict[tuple[int, int], list[State | SnapshotBatch]] = {}
    for state in states:
        found.setdefault((state[0], decode_state(state[2]).as_of), []).append(state)
    for batch in snapshots:
        found.setdefault((batch.partition, batch.as_of), []).append(batch)
    return found
