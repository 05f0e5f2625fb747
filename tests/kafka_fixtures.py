"""Real Apache Kafka for tests, never skipped, and the files beside the repository.

`bootstrap` is the address in EVENLOAD_TEST_BOOTSTRAP; else of a container, where a Docker engine answers and can run
the image; else of the embedded broker. One per test session. `topics` adds topics of its own to it for one test.
"""

import contextlib
import importlib
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from evenload.broker import Broker, ports
from evenload.broker.probe import brokers_known
from evenload.bus.topics import TopicNames, TopicSpec, ensure_topics, specs, topic_names
from tests.absence import lacking

_IMAGE = "apache/kafka:4.4.0"
_HOST = "127.0.0.1"
_CONTAINER_START_S = 90.0
# Lets tests of killed consumers use short sessions.
_FAST_GROUPS = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "0"}


@dataclass(frozen=True, slots=True)
class TestTopics:
    """Topics under a prefix of their own; with `bootstrap` all that a component needs to run beside others."""

    __test__ = False

    bootstrap: str
    prefix: str
    names: TopicNames
    specs: tuple[TopicSpec, ...]


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Kafka for this test session."""
    with contextlib.ExitStack() as stack:
        address = os.environ.get("EVENLOAD_TEST_BOOTSTRAP") or _container(stack)
        if address is None:
            broker = Broker(tmp_path_factory.mktemp("kafka"), properties=_FAST_GROUPS)
            address = stack.enter_context(broker).bootstrap
        yield address


@pytest.fixture
async def topics(bootstrap: str) -> AsyncIterator[TestTopics]:
    """All five topics, made under a prefix that no other test uses; what has that prefix is deleted afterwards."""
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    wanted = specs(prefix)
    await ensure_topics(bootstrap, wanted)
    yield TestTopics(bootstrap, prefix, topic_names(prefix), wanted)
    with contextlib.suppress(KafkaError, OSError):  # a test may have left the broker in a bad state
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=5000)
        try:
            await admin.start()
            await admin.delete_topics([name for name in await admin.list_topics() if name.startswith(prefix)])
        finally:
            await admin.close()


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder `shared` beside the repository (EVENLOAD_SHARED names another): traces and captures too big for it."""
    path = Path(os.environ.get("EVENLOAD_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    if not path.is_dir():
        lacking(f"the folder of shared traces and captures, and {path} is not there (set EVENLOAD_SHARED)")
    return path


def _container(stack: contextlib.ExitStack) -> str | None:
    """Start Kafka in Docker, to be removed with `stack`; None where no engine answers or the image cannot be had."""
    if not _engine_answers(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"):
        return None
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")  # it needs an image of its own, and pytest cleans up
    try:
        docker = importlib.import_module("docker")
        containers = importlib.import_module("testcontainers.core.container")
    except ImportError:
        return None
    port = ports.choose_free(_HOST)
    try:
        with contextlib.ExitStack() as attempt:
            container = containers.DockerContainer(_IMAGE)
            container.ports["9092/tcp"] = (_HOST, port)  # with_bind_ports would listen on every address
            for name, value in _container_environment(port).items():
                container = container.with_env(name, value)
            attempt.callback(container.stop)
            container.start()
            _await_answer(port)
            stack.push(attempt.pop_all())
    except docker.errors.DockerException:
        return None
    return f"{_HOST}:{port}"


def _engine_answers(address: str) -> bool:
    """Asked here first, since Docker's client leaves a socket open when nothing listens."""
    url = urlsplit(address)
    family = socket.AF_UNIX if url.scheme == "unix" else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(2.0)
        try:
            connection.connect(url.path if url.scheme == "unix" else (url.hostname, url.port or 2375))
        except OSError:
            return False
    return True


def _container_environment(port: int) -> dict[str, str]:
    properties = _FAST_GROUPS | {
        "node.id": "1",
        "process.roles": "broker,controller",
        "controller.quorum.voters": "1@localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://{_HOST}:{port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "log.cleaner.backoff.ms": "2000",
    }
    return {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in properties.items()}


def _await_answer(port: int) -> None:
    deadline = time.monotonic() + _CONTAINER_START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if brokers_known(_HOST, port) > 0:
                return
        time.sleep(0.2)
    pytest.fail(f"{_IMAGE} gave no answer on port {port} within {_CONTAINER_START_S:.0f} s")
