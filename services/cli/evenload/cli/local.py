"""Everything on one machine: the embedded Kafka, and Evenload's processes as children with one settings file."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from evenload.broker import Broker, BrokerError
from evenload.cli.checks import check_ports
from evenload.cli.http import answers
from evenload.cli.stopping import unwinding
from evenload.cli.supervise import ChildSpec, Supervisor
from evenload.settings import Settings, SettingsError
from evenload.settings.environment import settings_in
from evenload.settings.load import secret_variables
from evenload.settings.problems import Problem

FOLDER = Path(".evenload")
BROKER_LOOK_S = 1.0
LOGGER = logging.getLogger(__name__)


def embedded_broker(settings: Settings) -> Broker:
    """Describe the embedded Kafka as the settings want it; not started."""
    broker = settings.broker
    return Broker(broker.data_dir, port=broker.port, heap_mib=broker.memory_mb)


def run_broker(settings: Settings) -> None:
    """Run the embedded Kafka until a signal comes.

    Raises:
        BrokerError: It cannot be started, or it ended by itself.
    """
    broker = embedded_broker(settings)
    with unwinding(hurry=lambda: None), broker:
        LOGGER.info("Kafka answers at %s, its data is in %s; Ctrl-C stops it", broker.bootstrap, broker.folder)
        ended = threading.Event()
        while broker.running:
            ended.wait(0.5)
        raise BrokerError(f"Kafka ended by itself; see {broker.log_path}")


def with_bootstrap(settings: Settings, bootstrap: str) -> Settings:
    """The same settings with another Kafka."""
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"bootstrap": bootstrap})})


def write_settings(settings: Settings, path: Path) -> Path:
    """Write settings as a file that `--config` reads back as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "# Written by evenload at each start; changes are lost.\n"
    path.write_text(head + yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
    return path.absolute()


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment for children that get a settings file: variables that the file has already are left out."""
    merged = settings_in(os.environ).keys() - secret_variables(settings)
    own = {name: value for name, value in os.environ.items() if name not in merged and name != "EVENLOAD_CONFIG"}
    return own | {"PYTHONUNBUFFERED": "1"}


def service(name: str, command: str, settings: Settings, file: Path) -> ChildSpec:
    """Describe one of Evenload's processes.

    Args:
        name: Name in the output and of the child.
        command: The sub-command: router, scorer or collector.
        settings: What is in the file.
        file: The settings file it is to read.
    """
    router = settings.router
    return ChildSpec(
        name,
        [sys.executable, "-m", "evenload.cli.app", command, "--config", str(file)],
        env=child_environment(settings),
        ready=(lambda: answers(f"http://127.0.0.1:{router.port}/readyz")) if command == "router" else None,
        grace_s=router.announce_s + router.drain_s + 10 if command == "router" else 15,
    )


class PortTakenError(Exception):
    """A port that is needed cannot be listened on; the message names its key."""


@contextmanager
def kept_running(broker: Broker) -> Iterator[None]:
    """Start an embedded Kafka again when it ends by itself; on the same port, with the same data."""
    leaving = threading.Event()

    def keep() -> None:
        while not leaving.wait(BROKER_LOOK_S):
            if broker.running:
                continue
            LOGGER.error("Kafka ended by itself (see %s); starting it again", broker.log_path)
            try:
                broker.start()
                LOGGER.info("Kafka answers again at %s", broker.bootstrap)
            except (BrokerError, OSError) as error:
                LOGGER.error("Kafka did not start, trying again: %s", error)

    keeper = threading.Thread(target=keep, name="kafka-keeper", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        leaving.set()
        keeper.join()


@contextmanager
def kafka(settings: Settings) -> Iterator[Settings]:
    """Provide Kafka with all topics: the one that the settings name, else the embedded one while inside.

    Yields:
        The settings with the address in `kafka.bootstrap`.

    Raises:
        SettingsError: The embedded one is wanted, and it has no users and no TLS.
        AccessRefused, BusUnavailable, TopicMismatch, TopicRefused: of the topics.
    """
    from evenload.bus.access import cluster_of
    from evenload.bus.topics import ensure_topics, specs

    with ExitStack() as stack:
        if "bootstrap" not in settings.kafka.model_fields_set:
            if settings.kafka.security.protocol != "PLAINTEXT":
                reason = "is for a Kafka that kafka.bootstrap names; the embedded one speaks PLAINTEXT"
                raise SettingsError([Problem("settings", "kafka.security.protocol", reason)])
            LOGGER.info("starting the embedded Kafka; the first time it fetches 43 MB of jars")
            broker = stack.enter_context(embedded_broker(settings))
            stack.enter_context(kept_running(broker))
            settings = with_bootstrap(settings, broker.bootstrap)
        wanted = settings.kafka
        topics = specs(wanted.topic_prefix, wanted.partitions, wanted.replication)
        asyncio.run(ensure_topics(cluster_of(wanted, os.environ), topics))
        LOGGER.info("Kafka is ready at %s", wanted.bootstrap)
        yield settings


def demand_ports(settings: Settings) -> None:
    """Fail early, and before another program's answer is taken for that of our router.

    Raises:
        PortTakenError: Naming each port that is taken.
    """
    taken = [f"{check.check}: {check.seen}" for check in check_ports(settings) if check.status != "ok"]
    if taken:
        raise PortTakenError("; ".join(taken))


def run_all(settings: Settings) -> None:
    """Run Kafka (if none is named), a scorer, a collector and a router until a signal comes.

    Raises:
        PortTakenError: Another program has a port that one of the processes needs.
        ChildFailedError: A process did not become ready, or ended too often.
        BrokerError, BusUnavailable, TopicMismatch: There is no usable Kafka.
    """
    demand_ports(settings)
    supervisor = Supervisor()
    with unwinding(hurry=supervisor.kill), kafka(settings) as complete, supervisor:
        file = write_settings(complete, FOLDER / "up.yaml")
        for name in ("scorer", "collector", "router"):
            supervisor.start(service(name, name, complete, file))
        supervisor.wait_ready()
        print(_welcome(complete), flush=True)
        supervisor.run_until_cancelled()


def _welcome(settings: Settings) -> str:
    router = settings.router
    admin_host, admin_port = router.admin_address
    model = next((name for pool in settings.pools for name in pool.models if name != "*"), "MODEL")
    return f"""
Ready. Try:
  curl http://{router.host}:{router.port}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'
What it believes of each engine: http://{admin_host}:{admin_port}/fleet
Ctrl-C stops everything.
"""
