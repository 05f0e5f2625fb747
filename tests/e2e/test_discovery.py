"""Engines that come and go by a file, under load, with real processes and Kafka: nobody loses a request."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evenload.api.keys import new_key
from evenload.audit.main import Scope, check, read
from evenload.bus.log_reader import read_log
from evenload.demo.engine_server import EngineFleet
from evenload.router.fakes import post
from evenload.schemas import Membership, decode_batch
from evenload.settings import Settings
from tests.e2e import fleet
from tests.kafka_fixtures import TestTopics
from tests.router.stage import until

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.timeout(300)]


def settings_for(engines: EngineFleet, topics: TestTopics, folder: Path) -> Settings:
    settings = fleet.settings_for(
        engines, topics.bootstrap, topics.prefix, announce_s=0, admin_keys_file=str(folder / "keys")
    )
    data = settings.model_dump(mode="json")
    source = {"file": str(folder / "engines.yaml"), "template": {"kind": "vllm"}}
    data["pools"][0] |= {"instances": [], "discovery": [source]}
    data["discovery"] |= {"look_s": 0.1, "changes_file": str(folder / "changes.json")}
    return Settings.model_validate(data)


def name_engines(engines: EngineFleet, folder: Path, *numbers: int) -> None:
    named = [engines.engines[number] for number in numbers]
    beside = folder / "engines.new"
    beside.write_text(json.dumps({"instances": [{"id": one.name, "url": one.url} for one in named]}))
    beside.rename(folder / "engines.yaml")


async def work(url: str, ends: Counter[str], tokens: int) -> None:
    """Stream one answer after the other."""
    ask = {"model": fleet.MODEL, "stream": True, "max_tokens": tokens, "ignore_eos": True}
    while True:
        got = await post(url, {**ask, "messages": [{"role": "user", "content": "Hello"}]})
        whole = got.status == 200 and b"[DONE]" in got.body
        ends[got.headers[b"x-evenload-instance"].decode() if whole else f"failed {got.status}: {got.body!r}"] += 1


def _silent(what: str, done: int, total: int) -> None: ...


async def memberships(topics: TestTopics, instance: str) -> list[tuple[str, int, str]]:
    return [
        (event.change, event.gen, event.cause)
        async for record in read_log(topics.bootstrap, topics.names.telemetry)
        for event in decode_batch(record.value or b"").events
        if isinstance(event, Membership) and event.instance == instance
    ]


async def leaves(topics: TestTopics, instance: str) -> None:
    """Wait until the log says that an instance has left."""
    async with asyncio.timeout(40):
        while ("left", 0, "taken_out") not in await memberships(topics, instance):  # noqa: ASYNC110
            await asyncio.sleep(0.5)


async def test_engines_come_go_and_come_back_by_a_file_and_no_request_fails(topics: TestTopics, tmp_path: Path) -> None:
    secret, line = new_key("ops")
    (tmp_path / "keys").write_text(line)
    engines = fleet.engines(3)
    await engines.start()
    name_engines(engines, tmp_path, 0, 1)
    settings = settings_for(engines, topics, tmp_path)
    services = ("scorer", "collector", "router")
    children = {name: await asyncio.to_thread(fleet.start, name, name, settings, tmp_path) for name in services}
    port, url = settings.router.port, f"http://127.0.0.1:{settings.router.port}"
    ends: Counter[str] = Counter()
    workers: list[asyncio.Task[None]] = []

    async def shown(condition: Any, timeout_s: float = 40.0) -> dict[str, Any]:
        """Wait until the router's instances, by id, are as they should be."""

        def instances(page: Any) -> dict[str, Any]:
            return {one["instance"]: one for one in page["pools"][0]["instances"]}

        return instances(await fleet.becomes(port, "/fleet", lambda page: condition(instances(page)), timeout_s))

    async def operate(method: str, path: str) -> int:
        key = (b"authorization", f"Bearer {secret}".encode())
        return (await post(url, b"", key, path=f"/admin/instances{path}", method=method)).status

    try:
        await fleet.becomes(port, "/readyz", lambda page: page["ready"] and page["view"] == "fresh", 60)
        assert (await shown(lambda now: len(now) == 2)).keys() == {"chat:engine-0", "chat:engine-1"}
        workers = [asyncio.create_task(work(url, ends, tokens)) for tokens in (5, 5, 20, 400)]
        await until(lambda: ends["chat:engine-0"] > 5 and ends["chat:engine-1"] > 5, 40)

        # One more: it warms up, then has its share.
        name_engines(engines, tmp_path, 0, 1, 2)
        joined = await shown(lambda now: "chat:engine-2" in now)
        assert joined["chat:engine-2"]["score"] <= 45.0
        await shown(lambda now: now["chat:engine-2"]["score"] > 90 and now["chat:engine-2"]["running"] is not None)
        await until(lambda: ends["chat:engine-2"] > 5, 40)

        # One less: what runs there ends there.
        name_engines(engines, tmp_path, 1, 2)
        await shown(lambda now: now.keys() == {"chat:engine-1", "chat:engine-2"})
        await leaves(topics, "chat:engine-0")
        before = ends["chat:engine-0"]
        more = ends["chat:engine-1"] + 10
        await until(lambda: ends["chat:engine-1"] > more, 40)
        assert ends["chat:engine-0"] == before

        # The same one again: another generation, from the warm-up score on.
        name_engines(engines, tmp_path, 0, 1, 2)
        back = await shown(lambda now: now.get("chat:engine-0", {}).get("generation") == 1)
        assert back["chat:engine-0"]["successes"] < before
        await until(lambda: ends["chat:engine-0"] > before + 5, 40)
        told = [(change, gen) for change, gen, _ in await memberships(topics, "chat:engine-0")]
        assert [one for one in told if one[0] != "ready"][-3:] == [("draining", 0), ("left", 0), ("joined", 1)]

        # An operator's drain outlives a restart of the collector.
        assert await operate("POST", "/chat:engine-1/drain") == 200
        await shown(lambda now: now["chat:engine-1"]["draining"] and not now["chat:engine-1"]["in_flight"])
        await asyncio.to_thread(children["collector"].stop)
        children["collector"] = await asyncio.to_thread(fleet.start, "collector", "collector", settings, tmp_path)
        collector = settings.collector.metrics_port
        await fleet.becomes(collector, "/readyz", lambda page: page["ready"], 40)
        await asyncio.sleep(6)
        kept = await shown(lambda now: True)
        assert kept["chat:engine-1"]["draining"]
        assert kept["chat:engine-1"]["running"] == 0
        assert await operate("POST", "/chat:engine-1/undrain") == 200
        more = ends["chat:engine-1"]
        await until(lambda: ends["chat:engine-1"] > more + 3, 40)

        # An operator takes one out; the collector, which names the same file, tells the log when it has left.
        assert await operate("DELETE", "/chat:engine-2") == 200
        await leaves(topics, "chat:engine-2")
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        for name in ("router", "collector", "scorer"):
            await asyncio.to_thread(children[name].stop)
        await engines.stop()
    assert ends.keys() <= {"chat:engine-0", "chat:engine-1", "chat:engine-2"}, "no request failed"
    assert all(child.returncode == 0 for child in children.values())
    log = await read(settings, Scope(), _silent)
    report = check(log, settings, Scope(), _silent)
    assert (report.exit_code, report.first_difference) == (0, None), "each decision and score can be recomputed"
