"""Every process with a user of its own, over TLS, with just the rights of its row of the table; and with one less."""

import asyncio
import json
import re
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from evenload.bus.access import AccessRefused, cluster_of
from evenload.bus.emitter import Emitter
from evenload.bus.rights import RIGHTS, Right, rights_of
from evenload.bus.snapshots import SnapshotReader
from evenload.bus.start import ensure_start
from evenload.bus.topics import ensure_topics, specs, topic_names
from evenload.cli.local import write_settings
from evenload.cli.supervise import Child
from evenload.demo.engine_server import EngineFleet
from evenload.schemas import Outcome, SnapshotBatch
from evenload.settings import Settings
from tests.e2e import fleet
from tests.e2e.test_loop import ask, client, evenload, instances
from tests.secured_kafka import PASSWORD, SecuredKafka

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.timeout(300)]


class Installation:
    """Topics under a prefix of their own, and a user per process.

    Attributes:
        prefix: of the topics; the group is `PREFIX-scorer`.
    """

    def __init__(self, kafka: SecuredKafka) -> None:
        self.kafka = kafka
        self.prefix = f"t-{uuid.uuid4().hex[:8]}"

    def rights(self, process: str) -> list[Right]:
        return list(rights_of(process, topic_names(self.prefix)._asdict(), f"{self.prefix}-scorer"))

    async def brokers(self, process: str) -> Any:
        return cluster_of(self.kafka.settings(self.kafka.by_user(process), self.prefix), {})

    async def start(self, process: str) -> None:
        """Do what a process does first."""
        settings = self.kafka.settings(self.kafka.by_user(process), self.prefix)
        await ensure_start(cluster_of(settings, {}), process, settings, group=f"{self.prefix}-scorer", timeout_s=5)


@pytest.fixture
async def installation(secured: SecuredKafka) -> Installation:
    """The rights are granted, and the topics made by the user who may."""
    made = Installation(secured)
    for process in RIGHTS:
        await secured.grant(f"User:{process}", made.rights(process))
    await until_passes(lambda: ensure(made))
    return made


async def ensure(made: Installation) -> None:
    await ensure_topics(await made.brokers("topics"), specs(made.prefix))


async def until_passes(work: Callable[[], Awaitable[None]], seconds: float = 20.0) -> None:
    """Try until it is not refused: brokers learn of a right some milliseconds after it was granted."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await work()
            except AccessRefused:
                await asyncio.sleep(0.1)


async def until_refused(work: Callable[[], Awaitable[None]], seconds: float = 20.0) -> str:
    async with asyncio.timeout(seconds):
        while True:
            try:
                await work()
            except AccessRefused as error:
                return str(error)
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("process", ["scorer", "collector"])
async def test_a_process_that_lacks_one_right_is_told_which_before_it_does_anything(
    installation: Installation, process: str
) -> None:
    await until_passes(lambda: installation.start(process))
    for right in installation.rights(process):
        await installation.kafka.revoke(f"User:{process}", [right])
        said = await until_refused(lambda: installation.start(process))
        assert re.match(rf"user '{process}' lacks rights at Kafka: .*{right}", said), said
        assert "evenload topics acls" in said
        await installation.kafka.grant(f"User:{process}", [right])
        await until_passes(lambda: installation.start(process))


async def test_a_router_that_lacks_one_right_says_so_and_goes_on(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = await installation.brokers("router")
    telemetry, snapshots, _ = installation.rights("router")
    await installation.kafka.revoke("User:router", [telemetry, snapshots])
    await asyncio.sleep(1)  # until the broker has heard of it
    async with (
        Emitter(brokers, installation.prefix, "r", partitions=4) as emitter,
        SnapshotReader(brokers, installation.prefix, 4, lambda *_: None) as reader,
    ):
        emitter.add(Outcome(instance="a", kind="ok"), 0)
        assert not await emitter.flush(5)
        lines = [record.getMessage() for record in caplog.records if record.name.startswith("evenload")]
        for topic in ("telemetry", "snapshots"):
            (line,) = [line for line in lines if f"{installation.prefix}.{topic} at" in line]
            assert f"topic {installation.prefix}.{topic} does not exist, or user 'router' may not see it" in line
        await installation.kafka.grant("User:router", [telemetry, snapshots])
        assert await emitter.flush(20), "what was buffered is written once the right is there"
        async with asyncio.timeout(20):
            while not reader.connected:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def settings_of(installation: Installation, engines: EngineFleet, process: str) -> Settings:
    kafka = installation.kafka
    made = fleet.settings_for(engines, kafka.sasl, installation.prefix).model_dump(mode="json")
    made["kafka"] |= {"security": kafka.by_user(process)}
    made["scorer"] |= {"app_id": f"{installation.prefix}-scorer"}
    return Settings.model_validate(made)


async def test_every_process_runs_with_just_its_row(installation: Installation, tmp_path: Path) -> None:
    engines = fleet.engines(2)
    await engines.start()
    logs: dict[str, list[str]] = {process: [] for process in ("scorer", "collector", "router")}
    settings = {process: settings_of(installation, engines, process) for process in (*logs, "audit", "topics")}
    children: list[Child] = []
    try:
        for process, log in logs.items():
            children.append(fleet.start(process, process, settings[process], tmp_path, log))
        port = settings["router"].router.port
        await fleet.becomes(settings["collector"].collector.metrics_port, "/readyz", lambda page: page["ready"], 60)
        await fleet.becomes(port, "/readyz", lambda page: page["view"] == "fresh", 60)
        # Gauges have made the round: engine -> collector -> Kafka -> scorer -> Kafka -> router.
        await fleet.becomes(port, "/fleet", lambda page: all(one["waiting"] == 0 for one in instances(page)))
        async with client(settings["router"]) as who:
            for _ in range(10):
                await ask(who)
        for process in ("audit", "topics"):
            write_settings(settings[process], tmp_path / f"{process}.yaml")
        await fleet.becomes(port, "/fleet", lambda page: not any(one["own_events_on_top"] for one in instances(page)))
        code, out = await evenload("audit", "verify", "--json", "--config", str(tmp_path / "audit.yaml"))
        assert code == 0, out
        assert json.loads(out)["counts"]["decision verified"] >= 10
        code, out = await evenload("topics", "check", "--config", str(tmp_path / "topics.yaml"))
        assert code == 0, out
        code, out = await evenload("topics", "dead-letters", "--config", str(tmp_path / "topics.yaml"))
        assert code == 0, out
    except AssertionError as error:
        raise AssertionError(f"{error}: {logs}") from error
    finally:
        for child in reversed(children):
            child.stop()
        await engines.stop()
    for process, log in logs.items():
        text = "\n".join(log)
        assert "Authorization" not in text, (process, text)
        assert PASSWORD not in text
        assert "Traceback" not in text, (process, text)


async def test_a_router_that_is_refused_serves_on_and_says_so_once(secured: SecuredKafka, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    engines = fleet.engines(1)
    await engines.start()
    settings = settings_of(Installation(secured), engines, "router")
    security = settings.kafka.security.model_copy(update={"password_file": wrong})
    settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"security": security})})
    log: list[str] = []
    router = fleet.start("router", "router", settings, tmp_path, log)
    try:
        refuses = "refused user 'router' by SCRAM-SHA-512"
        await fleet.becomes(
            settings.router.port, "/readyz", lambda page: page["ready"] and refuses in page["kafka_refuses"], 60
        )
        async with client(settings) as who:
            for _ in range(20):
                _, text = await ask(who)
                assert text
                await asyncio.sleep(0.2)
    finally:
        router.stop()
        await engines.stop()
    assert router.returncode == 0
    refused = [line for line in log if "refused user 'router'" in line]
    # Within 10 s: one for the snapshots, one for telemetry, one for decisions.
    assert 1 <= len([line for line in refused if "snapshots" in line]) <= 2
    assert len(refused) <= 6, refused
    assert not [line for line in log if "Traceback" in line]


async def test_a_scorer_that_loses_a_right_ends_and_says_at_its_next_start_which(
    installation: Installation, tmp_path: Path
) -> None:
    engines = fleet.engines(1)
    await engines.start()
    await engines.stop()  # only its address is needed
    settings = settings_of(installation, engines, "scorer")
    log: list[str] = []
    scorer = fleet.start("scorer", "scorer", settings, tmp_path, log)
    read_telemetry = installation.rights("scorer")[0]
    try:
        async with asyncio.timeout(60):
            while not any("owns partitions" in line for line in log):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await installation.kafka.revoke("User:scorer", [read_telemetry])
        said = f"user 'scorer' lacks rights at Kafka: {read_telemetry}"
        async with asyncio.timeout(120):
            while not any(said in line for line in log):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    finally:
        scorer.stop()
    # Started anew by its supervisor, it says what it lacks; and until then it has not filled the log.
    assert any("ended with status 1" in line for line in log), log
    assert len(log) < 40, log


async def test_a_scorer_with_a_certificate_and_no_user_does_its_work(
    installation: Installation, tmp_path: Path
) -> None:
    """Faust takes mutual TLS from the same settings as everybody else."""
    kafka = installation.kafka
    await kafka.grant("User:CN=certified", installation.rights("scorer"))
    engines = fleet.engines(1)
    await engines.start()
    await engines.stop()  # only its address is needed
    made = settings_of(installation, engines, "scorer")
    certified = kafka.settings(kafka.by_certificate(), installation.prefix)
    secured = {"bootstrap": certified.bootstrap, "security": certified.security}
    settings = made.model_copy(update={"kafka": made.kafka.model_copy(update=secured)})
    log: list[str] = []
    scorer = fleet.start("scorer", "scorer", settings, tmp_path, log)
    try:
        async with (
            asyncio.timeout(120),
            Emitter(await installation.brokers("router"), installation.prefix, "r", partitions=4) as emitter,
        ):
            heard: list[str] = []

            def take(_partition: int, _offset: int, batch: SnapshotBatch) -> None:
                heard.extend(item.state.instance for item in batch.snapshots)

            async with SnapshotReader(await installation.brokers("router"), installation.prefix, 4, take):
                emitter.add(Outcome(instance="a", kind="ok"), 0)
                while "a" not in heard:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise AssertionError(log) from error
    finally:
        scorer.stop()


@pytest.mark.parametrize(
    ("command", "code"), [("scorer", 1), ("collector", 4), ("topics check", 4), ("audit verify", 4)]
)
async def test_a_process_that_is_refused_ends_with_one_line_that_says_why(
    secured: SecuredKafka, tmp_path: Path, command: str, code: int
) -> None:
    installation = Installation(secured)
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    engines = fleet.engines(1)
    await engines.start()
    await engines.stop()  # only its address is needed
    settings = settings_of(installation, engines, "nobody")
    security = settings.kafka.security.model_copy(update={"password_file": wrong})
    settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"security": security})})
    config = write_settings(settings, tmp_path / "config.yaml")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "evenload.cli.app", *command.split(), "--config", str(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        out = (await process.communicate())[0].decode()
    assert process.returncode == code, out
    assert "Traceback" not in out
    assert "refused user 'nobody' by SCRAM-SHA-512" in out.splitlines()[-1], out
    # What the collector reads and writes says so too, once each, while the topics are still being asked for.
    assert len([line for line in out.splitlines() if "refused user" in line]) <= (3 if command == "collector" else 1)
