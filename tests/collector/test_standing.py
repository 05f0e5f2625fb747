"""Which collector tells the log of whom, and what it learns of the log before it speaks."""

import asyncio
import json
from pathlib import Path

import pytest

from evenload.bus.topics import partition_for
from evenload.collector.main import Collector, _reload
from evenload.collector.standing import HEARD_MS, SILENT_MS, Standing
from evenload.schemas import WIRE_VERSION, EngineGauges, Event, InstanceState, Membership, SnapshotBatch
from evenload.scoring import fresh, snapshot
from evenload.settings import Settings, SettingsError
from evenload.settings.problems import Problem

PARTITIONS = 4


def settings_for(*instances: str, kind: str = "vllm", **discovery: object) -> Settings:
    listed = [{"id": name, "url": "http://127.0.0.1:1", "kind": kind} for name in instances]
    pool = {"name": "p", "models": ["*"], "instances": listed, **discovery}
    return Settings.model_validate({"kafka": {"bootstrap": "127.0.0.1:1"}, "pools": [pool]})


def shown(*states: InstanceState, partition: int | None = None) -> SnapshotBatch:
    where = partition_for(states[0].instance.encode(), PARTITIONS) if partition is None else partition
    return SnapshotBatch(
        v=WIRE_VERSION,
        partition=where,
        as_of=0,
        now_ms=1_000_000,
        linger_ms=20,
        sequences={},
        snapshots=[snapshot(state, 1_000_000) for state in states],
    )


def state_of(name: str, **fields: object) -> InstanceState:
    state = fresh(name, 1_000_000)
    for key, value in fields.items():
        setattr(state, key, value)
    return state


class Told:
    def __init__(self, *owned: str) -> None:
        self.events: list[Event] = []
        self.owned = set(owned)
        self.standing = Standing(PARTITIONS, 600_000, lambda name: name in self.owned, self.events.append)

    @property
    def changes(self) -> list[tuple[str, str, int]]:
        return [(one.instance, one.change, one.gen) for one in self.events if isinstance(one, Membership)]


def test_nobody_joins_before_the_log_has_been_heard() -> None:
    told = Told("a")
    told.standing.want(settings_for("a"), {}, 0.0)
    for now_ms in (0.0, 10_000.0, 100_000.0):
        told.standing.tick(now_ms)
    assert told.changes == [], "without a scorer nobody knows who has been drained"
    told.standing.on_batch(shown(state_of("z"), partition=partition_for(b"a", PARTITIONS)), 100_000.0)
    told.standing.tick(100_000.0 + HEARD_MS - 1)
    assert told.changes == []
    told.standing.tick(100_000.0 + HEARD_MS)
    assert told.changes == [("a", "joined", 0)]


def test_a_partition_with_nobody_in_it_is_told_by_the_others() -> None:
    told = Told("a")
    told.standing.want(settings_for("a"), {}, 0.0)
    told.standing.on_batch(shown(state_of("z"), partition=(partition_for(b"a", PARTITIONS) + 1) % PARTITIONS), 0.0)
    told.standing.tick(SILENT_MS - 1)
    assert told.changes == []
    told.standing.tick(SILENT_MS)
    assert told.changes == [("a", "joined", 0)]


def test_the_start_of_a_collector_ends_no_drain() -> None:
    """An operator drained it; a collector is started again."""
    told = Told("a")
    told.standing.want(settings_for("a"), {}, 0.0)
    for now_ms in range(0, 60_000, 1000):
        told.standing.on_batch(shown(state_of("a", draining=True)), float(now_ms))
        told.standing.tick(float(now_ms))
    assert told.changes == []


def test_only_the_one_that_polls_an_instance_speaks_of_it() -> None:
    tellers = [Told("a", "c"), Told("b")]
    for now_ms in range(0, 90_000, 1000):
        for told in tellers:
            some = ("a", "b", "c") if now_ms < 30_000 else ("a",)
            told.standing.want(settings_for(*some), {}, float(now_ms))
            for name in ("a", "b", "c"):
                told.standing.on_batch(shown(state_of(name, draining=now_ms > 35_000)), float(now_ms))
            told.standing.tick(float(now_ms))
    first, second = ({name for name, _, _ in told.changes} for told in tellers)
    assert (first, second) == ({"c"}, {"b"})
    tellers[1].owned.add("c")  # the other one is gone
    tellers[1].standing.on_batch(shown(state_of("c", draining=True)), 100_000.0)
    assert tellers[1].changes[-1] == ("c", "left", 0)


def test_what_a_poll_shows_is_told_of_the_generation_that_lives() -> None:
    collector = Collector(settings_for("a"))
    sent: list[Event] = []
    collector.emitter.add = lambda event, view_ms: sent.append(event)  # type: ignore[method-assign]
    collector._take(0, 0, shown(state_of("a", generation=4)))
    collector._emit(EngineGauges(instance="a", waiting=1))
    assert sent == [EngineGauges(instance="a", gen=4, waiting=1)]
    collector._take(0, 0, shown(state_of("a", generation=4, left_ms=1)))
    assert sent[1:] == [Membership(instance="a", gen=5, change="joined")]
    collector._emit(EngineGauges(instance="a", waiting=2))
    assert sent[2] == EngineGauges(instance="a", gen=5, waiting=2), "at once, whatever snapshots still say"


def test_a_state_of_an_older_generation_is_not_argued_with() -> None:
    collector = Collector(settings_for("a"))
    watch = collector.pollers[0].watch
    watch.on_failure("refused", 0.0)
    collector._take(0, 0, shown(state_of("a", left_ms=1)))
    before = collector.emitter.buffered
    collector._take(0, 0, shown(state_of("a", left_ms=1, ready=True)))
    assert collector.emitter.buffered == before


async def test_new_settings_begin_and_end_polls_and_leave_the_others_alone() -> None:
    collector = Collector(settings_for("a", "b"))
    a, b = (collector.roster.pollers[name] for name in "ab")
    collector.reload(settings_for("b", "c"))
    assert collector.roster.pollers.keys() == {"b", "c"}
    assert collector.roster.pollers["b"] is b
    assert a not in collector.pollers


async def test_a_hang_up_takes_over_the_pools_and_bad_settings_change_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector, wanted = Collector(settings_for("a")), asyncio.Event()
    answers: list[Settings | SettingsError] = [SettingsError([Problem("f:1", "pools", "is bad")]), settings_for("b")]

    def again() -> Settings:
        answer = answers.pop(0)
        if isinstance(answer, SettingsError):
            raise answer
        return answer

    task = asyncio.create_task(_reload(collector, again, wanted))
    wanted.set()
    async with asyncio.timeout(10):
        while "not reloaded, nothing has changed: f:1: pools: is bad" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert collector.roster.pollers.keys() == {"a"}
        wanted.set()
        while collector.roster.pollers.keys() != {"b"}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()


async def test_a_collector_follows_its_sources(tmp_path: Path) -> None:
    path = tmp_path / "f"

    def write(*names: str) -> None:
        (tmp_path / "new").write_text(json.dumps({"instances": [{"url": f"http://{name}:1"} for name in names]}))
        (tmp_path / "new").rename(path)

    write("x")
    settings = settings_for(discovery=[{"file": str(path)}])
    own = settings.discovery.model_copy(update={"look_s": 0.05})
    collector = Collector(settings.model_copy(update={"discovery": own}))
    assert collector.pollers == []
    collector.discovery.start()
    try:
        async with asyncio.timeout(10):
            while collector.roster.pollers.keys() != {"p:x:1"}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            write("y")
            while collector.roster.pollers.keys() != {"p:y:1"}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await collector.discovery.close()
