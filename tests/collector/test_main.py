"""The collector as a whole: with a scripted engine and a real Kafka, and without any."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from evenload.broker import ports
from evenload.bus.log_reader import read_log
from evenload.collector.fakes import ScriptedServer, ok
from evenload.collector.http_get import HttpGetter
from evenload.collector.main import Collector, _served_names, run
from evenload.schemas import (
    WIRE_VERSION,
    EngineGauges,
    Event,
    InstanceSnapshot,
    InstanceState,
    Membership,
    SnapshotBatch,
    decode_batch,
)
from evenload.settings import InstanceSettings, PoolSettings, Settings, SettingsError
from tests.kafka_fixtures import TestTopics

PAGE = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n"
PROGRAM = """
import pathlib, sys
from evenload.collector.main import run
from evenload.settings import Settings
run(Settings.model_validate_json(pathlib.Path(sys.argv[1]).read_text()))
"""
NOWHERE = "127.0.0.1:1"  # nothing listens on port 1


def settings_for(bootstrap: str, prefix: str, url: str, **collector: object) -> Settings:
    pool = PoolSettings(
        name="p",
        models=("*",),
        instances=(InstanceSettings(id="gpu-1", url=url), InstanceSettings(id="bedrock", url=url, kind="none")),
    )
    return Settings.model_validate(
        {
            "kafka": {"bootstrap": bootstrap, "topic_prefix": prefix},
            "pools": (pool,),
            "collector": {"name": "collector-1", "poll_ms": 50, **collector},
        }
    )


@asynccontextmanager
async def collecting(settings: Settings) -> AsyncIterator[Collector]:
    collector, stop = Collector(settings), asyncio.Event()
    collector.probes.port = 0
    running = asyncio.create_task(collector.run(stop))
    try:
        async with asyncio.timeout(10):
            while not collector.emitter.alive:  # noqa: ASYNC110 (the start is what is waited for)
                await asyncio.sleep(0.01)
        yield collector
    finally:
        stop.set()
        await running


async def wait_for_page(collector: Collector, path: str, status: int) -> bytes:
    with closing(HttpGetter(f"http://127.0.0.1:{collector.probes.port}")) as getter:
        async with asyncio.timeout(30):
            while (answer := await getter.get(path)).status != status:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    return answer.body


def said_by_scorer(partition: int, *snapshots: InstanceSnapshot) -> SnapshotBatch:
    return SnapshotBatch(
        v=WIRE_VERSION, partition=partition, as_of=0, now_ms=0, linger_ms=20, sequences={}, snapshots=list(snapshots)
    )


async def told(topics: TestTopics) -> list[Event]:
    return [
        event
        async for record in read_log(topics.bootstrap, topics.names.telemetry)
        for event in decode_batch(record.value or b"").events
    ]


@pytest.mark.kafka
async def test_the_log_hears_of_every_instance_and_of_the_gauges_of_engines(topics: TestTopics) -> None:
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
        async with collecting(settings_for(topics.bootstrap, topics.prefix, server.url)) as collector:
            await wait_for_page(collector, "/readyz", 200)
            for partition in range(4):  # the log is heard, and knows nobody
                collector._take(partition, 0, said_by_scorer(partition))
            async with asyncio.timeout(10):
                while len(collector.standing._members._told) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            page = await wait_for_page(collector, "/metrics", 200)
            assert b'evenload_collector_instance_ready{instance="gpu-1"} 1.0' in page
            assert b'evenload_collector_polls_total{instance="gpu-1"}' in page
            assert await wait_for_page(collector, "/healthz", 200) == b"ok\n"
            assert b"/readyz" in await wait_for_page(collector, "/nothing", 404)
    events = await told(topics)
    gauges = [event for event in events if isinstance(event, EngineGauges)]
    assert (gauges[0].instance, gauges[0].running, gauges[0].waiting, gauges[0].kv_usage) == ("gpu-1", 3, 1, 0.5)
    members = [(event.instance, event.change) for event in events if isinstance(event, Membership)]
    assert sorted(members) == [("bedrock", "joined"), ("gpu-1", "joined"), ("gpu-1", "ready")]
    assert not [event for event in events if isinstance(event, Membership) and event.change == "left"]


async def test_without_kafka_it_polls_on_and_is_not_ready() -> None:
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
        async with collecting(settings_for(NOWHERE, "t", server.url)) as collector:
            body = json.loads(await wait_for_page(collector, "/readyz", 503))
            assert body == {"ready": False, "problems": ["no connection to Kafka"], "kafka_refuses": ""}
            polls = collector.pollers[0].polls
            async with asyncio.timeout(10):
                while collector.pollers[0].polls < polls + 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert collector.pollers[0].watch.ready
            collector.emitter.buffered = 0  # nothing will take them, so do not wait for it at the end


def test_a_scorer_that_believes_otherwise_for_seconds_is_told_again() -> None:
    collector = Collector(settings_for(NOWHERE, "t", "http://127.0.0.1:1"))
    watch = collector.pollers[0].watch
    watch.on_failure("refused", 0.0)
    added = collector.emitter.buffered
    state = InstanceState(instance="gpu-1", ready=True)
    snapshot = InstanceSnapshot(score=1, raw=1, ttft=0, error=0, queue=0, state=state, digest="")
    collector._take(0, 0, said_by_scorer(0, snapshot))
    assert collector.emitter.buffered == added + 1


def test_a_collector_with_nothing_to_watch_refuses_to_start() -> None:
    with pytest.raises(SettingsError, match="pools"):
        run(Settings())


async def test_a_taken_port_is_named_with_its_key() -> None:
    async with ScriptedServer() as server:
        collector = Collector(settings_for(NOWHERE, "t", server.url, metrics_port=server.port))
        with pytest.raises(SettingsError, match=r"collector\.metrics_port"):
            await collector.run(asyncio.Event())


@pytest.mark.kafka
@pytest.mark.e2e
async def test_sigterm_flushes_and_ends_with_status_0(topics: TestTopics, tmp_path: Path) -> None:
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
        port = ports.choose_free("127.0.0.1")
        settings = settings_for(topics.bootstrap, topics.prefix, server.url, metrics_port=port)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        path = tmp_path / "settings.json"
        path.write_text(settings.model_dump_json())
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, str(path), env=environment, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(30):
                while len(server.requests) < 8 and process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
                _, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, errors.decode()
    assert {type(event) for event in await told(topics)} == {EngineGauges, Membership}


async def test_a_gauge_that_vanishes_raises_an_alarm_and_the_kind_of_engine_is_shown() -> None:
    """F30."""
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
        async with collecting(settings_for(NOWHERE, "t", server.url)) as collector:
            poller = collector.pollers[0]
            async with asyncio.timeout(10):
                while poller.watch.page is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            page = await wait_for_page(collector, "/metrics", 200)
            assert b'evenload_collector_engine_info{instance="gpu-1",kind="vllm"} 1.0' in page
            assert b"evenload_collector_gauge_vanished{" not in page
            server.answers["/metrics"] = ok(PAGE.replace(b"kv_cache_usage_perc", b"kv_cache_usage_ratio"))
            async with asyncio.timeout(10):
                while not poller.watch.vanished:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            page = await wait_for_page(collector, "/metrics", 200)
            assert b'evenload_collector_gauge_vanished{gauge="kv_usage",instance="gpu-1"} 1.0' in page
            assert b'evenload_collector_gauge_missing{gauge="kv_usage",instance="gpu-1"} 1.0' in page
            collector.emitter.buffered = 0


def test_names_of_models_are_those_of_the_instance() -> None:
    instance = InstanceSettings(url="http://h:1", model_names={"a": "org/a"})
    assert _served_names(instance, ("a", "b")) == ("org/a", "b")
    assert _served_names(instance, ("a", "*")) == ()


def test_a_collector_that_is_none_of_its_peers_refuses_to_start() -> None:
    settings = settings_for(NOWHERE, "t", "http://127.0.0.1:1", peers=["http://c-0:8082"], advertise="http://c-1:8082")
    with pytest.raises(SettingsError, match=r"collector\.advertise"):
        run(settings)


@pytest.mark.kafka
async def test_two_collectors_share_the_instances_and_one_takes_over_from_the_other(topics: TestTopics) -> None:
    ports_ = [ports.choose_free("127.0.0.1") for _ in range(2)]
    peers = [f"http://127.0.0.1:{port}" for port in ports_]
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
        found = [
            settings_for(topics.bootstrap, topics.prefix, server.url, peers=peers, advertise=peer) for peer in peers
        ]
        many = [settings.model_copy(update={"pools": (pool_of(server.url, 20),)}) for settings in found]
        first, second = (Collector(settings) for settings in many)
        stops = [asyncio.Event(), asyncio.Event()]
        for collector, port in zip((first, second), ports_, strict=True):
            collector.probes.port = port
        tasks = [asyncio.create_task(c.run(stop)) for c, stop in zip((first, second), stops, strict=True)]

        def owned(collector: Collector) -> set[str]:
            return {p.watch.instance for p in collector.pollers if collector.peers.owns(p.watch.instance)}

        async with asyncio.timeout(30):
            while len(first.peers.live) + len(second.peers.live) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert owned(first) | owned(second) == {p.watch.instance for p in first.pollers}
        assert not owned(first) & owned(second)
        assert owned(first)
        assert owned(second)
        stops[0].set()
        await tasks[0]
        async with asyncio.timeout(3):
            while len(owned(second)) < 20 or any(p.watch.page is None for p in second.pollers):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        stops[1].set()
        await tasks[1]


def pool_of(url: str, count: int) -> PoolSettings:
    instances = tuple(InstanceSettings(id=f"gpu-{n}", url=url) for n in range(count))
    return PoolSettings(name="p", models=("*",), instances=instances)


async def test_a_task_that_dies_turns_readiness_off_and_is_started_again() -> None:
    """F46."""
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
        async with collecting(settings_for(NOWHERE, "t", server.url)) as collector:
            poller = collector.pollers[0]
            watch, poller.watch = poller.watch, None  # type: ignore[assignment]  # whatever it is that kills it
            dead = "poll gpu-1 is not running"
            async with asyncio.timeout(10):
                while dead not in json.loads(await wait_for_page(collector, "/readyz", 503))["problems"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            poller.watch = watch
            async with asyncio.timeout(10):
                while dead in json.loads(await wait_for_page(collector, "/readyz", 503))["problems"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            collector.emitter.buffered = 0
