"""The whole loop with real processes: telemetry, Kafka, Faust scores, snapshots, routing, audit."""

import asyncio
import contextlib
import copy
import json
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec.structs import replace

from evenload.audit.main import Log, Scope, check, read
from evenload.demo.engine_server import EngineFleet
from evenload.schemas import FirstToken, decode_batch
from evenload.settings import Settings
from tests.e2e import fleet
from tests.kafka_fixtures import TestTopics

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]


@pytest.fixture
async def engines() -> AsyncIterator[EngineFleet]:
    made = fleet.engines(3)
    await made.start()
    yield made
    await made.stop()


def client(settings: Settings) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{settings.router.port}/v1", api_key="none", max_retries=0)


async def ask(who: openai.AsyncOpenAI, tokens: int = 5) -> tuple[str, str]:
    """One streamed request; returns its id and its text."""
    raw = await who.chat.completions.with_raw_response.create(
        model=fleet.MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=tokens, stream=True
    )
    text = ""
    async for chunk in raw.parse():
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    return raw.headers["x-request-id"], text


async def evenload(*arguments: str) -> tuple[int, str]:
    """Run a command; returns its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "evenload.cli.app", *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_the_official_client_works_while_kafka_was_never_there(engines: EngineFleet, tmp_path: Path) -> None:
    settings = fleet.settings_for(engines, "127.0.0.1:1", "nowhere")
    router = fleet.start("router", "router", settings, tmp_path)
    try:
        ready = await fleet.becomes(settings.router.port, "/readyz", lambda page: page["ready"])
        assert ready["view"] == "local only"
        async with client(settings) as who:
            assert [model.id async for model in await who.models.list()] == [fleet.MODEL]
            for _ in range(10):
                _, text = await ask(who)
                assert len(text) > 5
            whole = await who.chat.completions.create(
                model=fleet.MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=4
            )
            assert whole.choices[0].message.content
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 4
            text = (await who.completions.create(model=fleet.MODEL, prompt="Hello", max_tokens=3)).choices[0].text
            assert text
            vectors = await who.embeddings.create(model=fleet.MODEL, input="Hello", encoding_format="float")
            assert len(vectors.data[0].embedding) > 1
            with pytest.raises(openai.NotFoundError, match="not served here"):
                await who.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "Hello"}])
        page = await fleet.becomes(settings.router.port, "/fleet", lambda page: True)
        assert sum(one["successes"] for one in page["pools"][0]["instances"]) == 13
        assert all(one["in_flight"] == 0 for one in page["pools"][0]["instances"])
    finally:
        router.stop()
    assert router.returncode == 0


async def test_every_decision_of_the_running_loop_is_verified_and_explained_and_no_forgery_is(
    engines: EngineFleet, topics: TestTopics, tmp_path: Path
) -> None:
    settings = fleet.settings_for(engines, topics.bootstrap, topics.prefix)
    children = [fleet.start(name, name, settings, tmp_path) for name in ("scorer", "collector", "router")]
    port = settings.router.port
    try:
        await fleet.becomes(port, "/readyz", lambda page: page["view"] == "fresh", 60)
        # Gauges have made the round: engine -> collector -> Kafka -> scorer -> Kafka -> router.
        await fleet.becomes(port, "/fleet", lambda page: all(one["waiting"] == 0 for one in instances(page)))
        async with client(settings) as who:
            ids = [request for request, _ in await asyncio.gather(*(ask(who) for _ in range(20)))]
            await engines.engines[0].set_faults({"fail_fast": {}})
            ids += [request for request, _ in await asyncio.gather(*(ask(who) for _ in range(20)))]
        # All of it reaches the log, the scorer and the view again.
        await fleet.becomes(
            port, "/fleet", lambda page: all(one["own_events_on_top"] == 0 for one in instances(page)), 30
        )
        config = str(tmp_path / "router.yaml")
        code, out = await evenload("audit", "verify", "--json", "--config", config)
        report = json.loads(out)
        assert (code, report["first_difference"], report["gaps"]) == (0, None, [])
        assert report["counts"]["decision verified"] >= 40
        assert report["counts"]["snapshot verified"] > 10
        assert not report["unverifiable"]
        code, out = await evenload("audit", "explain", ids[-1], "--config", config)
        assert code == 0
        assert "was chosen because" in out
        assert "It ended as ok with status 200" in out
        code, out = await evenload("audit", "explain", "no-such-request", "--config", config)
        assert code == 1
        log = await read(settings, Scope(), _silent)
    finally:
        for child in reversed(children):
            child.stop()
    assert [child.returncode for child in children] == [0, 0, 0]
    assert check(log, settings, Scope(), _silent).exit_code == 0
    for alter, code in [(_change_a_byte, 1), (_drop_a_record, 2), (_forge_a_snapshot, 1)]:
        altered = copy.deepcopy(log)
        alter(altered)
        assert check(altered, settings, Scope(), _silent).exit_code == code, alter.__name__
    pool = settings.pools[0]
    pool = pool.model_copy(update={"scoring": pool.scoring.model_copy(update={"ewma_alpha": 0.21})})
    other = settings.model_copy(update={"pools": [pool]})
    report = check(log, other, Scope(), _silent)
    assert report.first_difference is not None
    assert (report.exit_code, report.first_difference.reason) == (1, "the scoring config differs")


def _silent(what: str, done: int, total: int) -> None: ...


def _change_a_byte(log: Log) -> None:
    for records in log.telemetry.values():
        for number, (offset, at_ms, value) in enumerate(records):
            first = next((one for one in decode_batch(value).events if isinstance(one, FirstToken)), None)
            if first is not None:
                place = value.index(struct.pack(">d", first.ttft_ms)) + 3
                records[number] = (offset, at_ms, value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :])
                return
    pytest.fail("no first token in the log")


def _drop_a_record(log: Log) -> None:
    records = max(log.telemetry.values(), key=len)
    del records[len(records) // 2]


def _forge_a_snapshot(log: Log) -> None:
    records = max(log.snapshots.values(), key=len)
    offset, batch = records[len(records) // 2]
    forged = [replace(batch.snapshots[0], score=batch.snapshots[0].score / 2 + 1), *batch.snapshots[1:]]
    records[len(records) // 2] = (offset, replace(batch, snapshots=forged))


async def test_up_serves_real_engines_and_leaves_nothing_behind(
    engines: EngineFleet, topics: TestTopics, tmp_path: Path
) -> None:
    settings = fleet.settings_for(engines, topics.bootstrap, topics.prefix)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "evenload.cli.app", "up", "--kafka-bootstrap", topics.bootstrap),
        *("--kafka-topic-prefix", topics.prefix, "--model", fleet.MODEL, "--port", str(settings.router.port)),
        *("--scorer-web-port", str(settings.scorer.web_port)),
        *("--collector-metrics-port", str(settings.collector.metrics_port)),
        *(word for engine in engines.engines for word in ("--engine", engine.url)),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            while b"Ready. Try:" not in await process.stdout.readline():
                assert process.returncode is None
        async with client(settings) as who:
            assert (await ask(who))[1]
    finally:
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            await process.wait()
    assert process.returncode == 130
    for port in (settings.router.port, settings.scorer.web_port, settings.collector.metrics_port):
        assert await asyncio.to_thread(fleet.get, port, "/healthz") is None


def instances(page: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page["pools"][0]["instances"]
    return found


async def test_up_starts_a_killed_kafka_again_and_the_view_becomes_fresh(engines: EngineFleet, tmp_path: Path) -> None:
    settings = fleet.settings_for(engines, "127.0.0.1:1", "up")
    port = settings.router.port
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "evenload.cli.app", "up", "--model", fleet.MODEL, "--port", str(port)),
        *("--broker-port", "0", "--scorer-web-port", str(settings.scorer.web_port)),
        *("--collector-metrics-port", str(settings.collector.metrics_port)),
        *(word for engine in engines.engines for word in ("--engine", engine.url)),
        cwd=tmp_path,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        await fleet.becomes(port, "/readyz", lambda page: page["view"] == "fresh", 90)
        java = next(pid for pid in children_of(process.pid) if "java" in pid.joinpath("cmdline").read_text())
        os.kill(int(java.name), signal.SIGKILL)
        async with asyncio.timeout(60):
            while b"Kafka answers again" not in await process.stderr.readline():
                assert process.returncode is None
        draining = asyncio.create_task(process.stderr.read())
        await fleet.becomes(port, "/fleet", lambda page: page["view"] == "fresh" and page["snapshot_age_ms"] < 2500, 60)
        async with client(settings) as who:
            assert (await ask(who))[1]
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            await process.wait()
    await draining
    assert process.returncode == 0


def children_of(pid: int) -> list[Path]:
    """The /proc folders of all descendants of a process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[stat.parent] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: list[Path] = []
    wanted = {pid}
    while fresh := [folder for folder, parent in parents.items() if parent in wanted and folder not in found]:
        found += fresh
        wanted = {int(folder.name) for folder in fresh}
    return found


async def test_what_is_not_served_below_v1_is_refused_in_the_apis_form(engines: EngineFleet, tmp_path: Path) -> None:
    settings = fleet.settings_for(engines, "127.0.0.1:1", "nowhere")
    router = fleet.start("router", "router", settings, tmp_path)
    port = settings.router.port
    try:
        await fleet.becomes(port, "/readyz", lambda page: page["ready"])
        assert (await asyncio.to_thread(fleet.get, port, "/v1/nothing"))["error"]["code"] == "not_found"
        got = await asyncio.to_thread(fleet.get, port, "/v1/chat/completions")
        assert got["error"]["code"] == "method_not_allowed"
    finally:
        router.stop()
