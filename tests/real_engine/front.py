"""Evenload before the engines, whole: Kafka, a scorer, a collector and a router, each a process."""

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from evenload.broker import Broker, ports
from evenload.bus.topics import ensure_topics, specs
from evenload.cli.http import get
from evenload.cli.local import service, with_bootstrap, write_settings
from evenload.cli.supervise import Supervisor
from evenload.settings import Settings

from .engine import HOST, MODEL, RealEngine

LOOK_S = 0.1


class Front:
    """A context manager; leaving it stops what it started.

    Attributes:
        settings: of all its processes.
        url: the router's base address.
    """

    def __init__(self, engines: Sequence[RealEngine], folder: Path) -> None:
        self.settings = settings_for(engines)
        self.url = f"http://{HOST}:{self.settings.router.port}"
        self._folder = folder
        self._log = (folder / "logs" / "evenload.log").open("w", encoding="utf-8")
        self.supervisor = Supervisor(self._write)
        self._exits = ExitStack()

    def __enter__(self) -> "Front":
        exits = self._exits
        exits.callback(self._log.close)
        shutil.rmtree(self._folder / "kafka", ignore_errors=True)  # the counts of the last run are not of this one
        try:
            broker = exits.enter_context(Broker(self._folder / "kafka", port=ports.choose_free(HOST)))
            settings = self.settings = with_bootstrap(self.settings, broker.bootstrap)
            _create_topics(settings)
            exits.callback(self.supervisor.stop)
            file = write_settings(settings, self._folder / "evenload.yaml")
            for name in ("scorer", "collector", "router"):
                self.supervisor.start(service(name, name, settings, file))
            self.supervisor.wait_ready()
        except BaseException:
            exits.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def fleet(self) -> dict[str, dict[str, Any]]:
        """Return what the router believes of each instance, by name."""
        pools = json.loads(get(f"{self.url}/fleet", timeout_s=5)[1])["pools"]
        return {each["instance"]: each for pool in pools for each in pool["instances"]}

    def of(self, engine: RealEngine) -> dict[str, Any]:
        """Return what the router believes of one."""
        return self.fleet()[engine.name]

    def samples(self, part: str, prefix: str) -> dict[str, float]:
        """Return the samples whose names begin so, of the metrics of the router or the collector."""
        collector = self.settings.collector
        port = self.settings.router.port if part == "router" else collector.metrics_port
        page = get(f"http://{HOST}:{port}/metrics", timeout_s=5)[1].decode("utf-8")
        lines = (line.rpartition(" ") for line in page.splitlines() if line.startswith(prefix))
        return {name: float(value) for name, _, value in lines}

    def attempts(self, engine: RealEngine) -> dict[str, float]:
        """Return how attempts at an engine ended, by outcome."""
        found: dict[str, float] = {}
        for name, value in self.samples("router", "evenload_router_attempts_total").items():
            if f'instance="{engine.name}"' in name and value:
                outcome = name.partition('outcome="')[2].partition('"')[0]
                found[outcome] = found.get(outcome, 0.0) + value
        return found

    def _write(self, name: str, line: str) -> None:
        if not self._log.closed:
            self._log.write(f"{name:<10}| {line}\n")
            self._log.flush()


def settings_for(engines: Sequence[RealEngine]) -> Settings:
    """Defaults, but for ports."""
    router, scorer, collector = (ports.choose_free(HOST) for _ in range(3))
    return Settings.model_validate(
        {
            "pools": [
                {
                    "name": "real",
                    "models": [MODEL],
                    "instances": [{"id": each.name, "url": each.url} for each in engines],
                }
            ],
            "router": {"port": router, "announce_s": 0.5},
            "scorer": {"web_port": scorer},
            "collector": {"metrics_port": collector},
        }
    )


def _create_topics(settings: Settings) -> None:
    kafka = settings.kafka
    asyncio.run(ensure_topics(kafka.bootstrap, specs(kafka.topic_prefix, kafka.partitions, kafka.replication)))


def seconds_until(condition: Callable[[], bool], limit_s: float) -> float | None:
    """Wait until something holds; returns how long that took, None if it did not come to hold in time."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < limit_s:
        try:
            if condition():
                return time.monotonic() - began_s
        except OSError:
            pass  # whoever is asked is busy
        time.sleep(LOOK_S)
    return None
