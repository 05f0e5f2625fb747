"""Two routers that share a key send conversations to the same engines, and the audit of the topics proves it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from evenload.audit.main import Scope, check, read
from evenload.broker import ports
from evenload.demo.engine_server import EngineFleet, EngineServer
from evenload.router.fakes import post
from evenload.settings import Settings
from tests.e2e import fleet
from tests.kafka_fixtures import TestTopics
from tests.router.test_homes import conversation, home

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]

CONVERSATIONS, TURNS = 8, 5


@pytest.fixture
async def engines() -> AsyncIterator[EngineFleet]:
    made = EngineFleet([EngineServer(name=f"engine-{n}", model=fleet.MODEL, speed=4.0) for n in range(3)])
    await made.start()
    yield made
    await made.stop()


def two(engines: EngineFleet, topics: TestTopics, key: Path) -> list[Settings]:
    """Settings of two routers that differ in name and port only."""
    one = fleet.settings_for(engines, topics.bootstrap, topics.prefix, prefix_key_file=str(key), name="router-a")
    one = one.model_copy(update={"pools": (one.pools[0].model_copy(update={"prefix_affinity": True}),)})
    other = one.router.model_copy(update={"name": "router-b", "port": ports.choose_free("127.0.0.1")})
    return [one, one.model_copy(update={"router": other})]


async def ask(settings: Settings, body: dict[str, Any]) -> None:
    url = f"http://127.0.0.1:{settings.router.port}"
    got = await post(url, {**body, "model": fleet.MODEL}, path="/v1/chat/completions")
    assert got.status == 200, got.body


def _silent(what: str, done: int, total: int) -> None: ...


async def test_two_routers_agree_where_a_conversation_belongs_and_the_audit_proves_it(
    engines: EngineFleet, topics: TestTopics, tmp_path: Path
) -> None:
    key = tmp_path / "prefix.key"
    key.write_text("a secret of this deployment\n")
    routers = two(engines, topics, key)
    children = [fleet.start(name, name, routers[0], tmp_path) for name in ("scorer", "collector")]
    children += [fleet.start(one.router.name, "router", one, tmp_path) for one in routers]
    try:
        for one in routers:
            await fleet.becomes(one.router.port, "/readyz", lambda page: page["view"] == "fresh", 60)
        for number in range(24):  # what a token costs at each engine, by prompts that come once
            body = conversation(1000 + number, 1)
            body["messages"] = [{"role": "user", "content": f"{number} " + "x y " * (100, 800, 2000, 4000)[number % 4]}]
            await ask(routers[number // 4 % 2], body)
        for turn in range(1, TURNS + 1):
            for number in range(CONVERSATIONS):
                await ask(routers[turn % 2], conversation(number, turn))
        for one in routers:
            await fleet.becomes(one.router.port, "/fleet", _all_told, 30)
        await asyncio.sleep(1.0)  # decisions linger, too
        log = await read(routers[0], Scope(), _silent)
    finally:
        for child in reversed(children):
            child.stop()
    report = check(log, routers[0], Scope(), _silent)
    assert report.first_difference is None, report.first_difference
    assert report.exit_code == 0
    assert report.counts["decision", "verified"] == len(log.decisions) == 24 + CONVERSATIONS * TURNS
    at_home = [one for one in log.decisions if one.prefix]
    by_prefix = {
        prefix: {one.router for one in at_home if one.prefix == prefix} for prefix in {d.prefix for d in at_home}
    }
    assert len(by_prefix) == CONVERSATIONS
    assert set(map(frozenset, by_prefix.values())) == {frozenset({"router-a", "router-b"})}
    assert any(one.winner == home(one) for one in at_home)  # how many, on a quiet clock: tests/router/test_homes.py
    log.decisions[:] = [replace(one, prefix=one.prefix ^ 1) if one.prefix else one for one in log.decisions]
    assert check(log, routers[0], Scope(), _silent).exit_code == 1


def _all_told(page: Any) -> bool:
    return all(one["own_events_on_top"] == 0 for one in page["pools"][0]["instances"])
