"""A lane: one fleet of simulated engines, the routers before it, and the load on them. The demo has three.

Every process is a child that cannot outlive the demo and is not started again by itself: an unplanned end is an error.
"""

import http.client
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from evenload.broker.ports import choose_free
from evenload.cli.http import answers
from evenload.cli.local import child_environment, write_settings
from evenload.cli.supervise import ChildFailedError, ChildSpec, Supervisor
from evenload.demo.load_run import LoadRun
from evenload.demo.observe import Sample, observe
from evenload.settings import Settings

HOST: Final = "127.0.0.1"
MODEL: Final = "demo-8b"
ENGINES: Final = 6
ADMIN_TIMEOUT_S: Final = 5.0
ROUTER_DRAIN_S: Final = 3.0

Log = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What all lanes have in common.

    Attributes:
        folder: Where files of the demo go.
        arrivals: The workload, in a file.
        preset, speed, seed: Of the simulated engines.
        bootstrap: Kafka's address.
        log_level: Of all processes.
        log: Takes a process' name and a line of its output.
    """

    folder: Path
    arrivals: Path
    preset: str
    speed: float
    seed: int
    bootstrap: str
    log_level: str
    log: Log


class EngineProcess:
    """Several simulated engines in one process."""

    def __init__(self, supervisor: Supervisor, name: str, plan: Plan, provider_ttft_ms: float | None = None) -> None:
        argv = [sys.executable, "-m", "evenload.demo.engine_server", "--port", "0", "--count", str(ENGINES)]
        argv += ["--preset", plan.preset, "--speed", f"{plan.speed:g}", "--name", name, "--model", MODEL]
        argv += ["--seed", str(plan.seed)]
        if provider_ttft_ms is not None:
            argv += ["--provider-ttft-ms", f"{provider_ttft_ms:g}"]
        self._supervisor = supervisor
        self._child = f"{name}s"
        supervisor.start(ChildSpec(self._child, argv, ready=self._ready, restart=None))
        self._name = name

    def _lines(self) -> list[str]:
        return self._supervisor[self._child].tail.splitlines()

    def _ready(self) -> bool:
        return "ready" in self._lines()

    @property
    def names(self) -> list[str]:
        """Names, in order."""
        return [f"{self._name}-{index}" for index in range(ENGINES)]

    def urls(self) -> dict[str, str]:
        """Base URLs by name; known once it is ready."""
        pairs = [line.split() for line in self._lines() if line.startswith(f"{self._name}-")]
        return {pair[0]: pair[1] for pair in pairs if len(pair) > 1}

    def fault(self, index: int, document: dict[str, Any] | None) -> None:
        """Tell an engine its faults; None heals it.

        Raises:
            ChildFailedError: The process does not take it.
        """
        name = self.names[index]
        url = urlsplit(self.urls()[name])
        connection = http.client.HTTPConnection(url.hostname or HOST, url.port, timeout=ADMIN_TIMEOUT_S)
        path = f"/admin/faults?engine={quote(name)}"
        try:
            if document is None:
                connection.request("DELETE", path)
            else:
                connection.request("POST", path, json.dumps(document))
            response = connection.getresponse()
            text = response.read(10_000).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise ChildFailedError(f"{name} did not take the fault {document}: {error}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise ChildFailedError(f"{name} refused the fault {document}: {response.status} {text}")


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """What one lane is.

    Attributes:
        name: What the summary calls it.
        engine: First part of its engines' names.
        policy: Of its pool; None leaves it to the default.
        topic_prefix: Of its topics.
        routers: Names of its routers.
        provider_ttft_ms: Its engines are providers, with this median TTFT.
    """

    name: str
    engine: str
    policy: str | None
    topic_prefix: str
    routers: tuple[str, ...]
    provider_ttft_ms: float | None = None


class Lane:
    """See the module docstring.

    Attributes:
        name: What the summary calls it.
        samples: What its routers said so far.
    """

    def __init__(self, supervisor: Supervisor, plan: Plan, spec: LaneSpec) -> None:
        """Start the engines; they need not be ready."""
        self.name = spec.name
        self.samples: list[Sample] = []
        self.routers = [f"http://{HOST}:{choose_free(HOST)}" for _ in spec.routers]
        self.load: LoadRun | None = None
        self._services: list[str] = []
        self._supervisor, self._plan, self._spec = supervisor, plan, spec
        self.engines = EngineProcess(supervisor, spec.engine, plan, spec.provider_ttft_ms)

    def settings(self, **sections: Any) -> Settings:
        """The settings of its processes, with more sections; engines must be ready."""
        urls = self.engines.urls()
        kind = "vllm" if self._spec.provider_ttft_ms is None else "none"
        instances = [{"id": name, "url": urls[name], "kind": kind} for name in self.engines.names]
        pool = {"name": "demo", "models": [MODEL], "policy": self._spec.policy, "instances": instances}
        return Settings.model_validate(
            {
                "kafka": {"bootstrap": self._plan.bootstrap, "topic_prefix": self._spec.topic_prefix},
                "pools": [pool],
                "log": {"level": self._plan.log_level},
                **sections,
            }
        )

    def start_scorer(self) -> None:
        """Start a scorer, without waiting for it."""
        port = choose_free(HOST)
        self._services.append("scorer")
        self._start("scorer", "scorer", self.settings(scorer={"web_port": port}), f"http://{HOST}:{port}/readyz")

    def start_collector(self) -> None:
        """Start a collector, without waiting for it."""
        port = choose_free(HOST)
        self._services.append("collector")
        settings = self.settings(collector={"metrics_port": port})
        self._start("collector", "collector", settings, f"http://{HOST}:{port}/metrics")

    def start_routers(self) -> None:
        """Start all its routers, without waiting for them."""
        for index in range(len(self.routers)):
            self.start_router(index)

    def start_router(self, index: int) -> None:
        """Start one router, for the first time or again."""
        name, url = self._spec.routers[index], self.routers[index]
        if any(child.spec.name == name for child in self._supervisor.children):
            self._supervisor[name].start()
            return
        seed = self._plan.seed + index
        times = {"drain_s": ROUTER_DRAIN_S, "announce_s": 0}
        router = {"name": name, "port": urlsplit(url).port, "seed": seed, **times}
        self._start(name, "router", self.settings(router=router), f"{url}/readyz")

    @property
    def router_names(self) -> tuple[str, ...]:
        """Names, in order."""
        return self._spec.routers

    def services(self) -> list[tuple[str, bool]]:
        """(name, whether it runs) of scorer and collector, if the lane has them."""
        return [(c.spec.name, c.running) for c in self._supervisor.children if c.spec.name in self._services]

    def kill_router(self, index: int) -> None:
        """SIGKILL, as a crash."""
        self._supervisor[self._spec.routers[index]].kill()

    def router_ready(self, index: int) -> bool:
        """Whether a router answers and says that it is ready."""
        return answers(f"{self.routers[index]}/readyz", timeout_s=1.0)

    def unexpected_end(self, *, but_router: int | None = None) -> str | None:
        """Name and last lines of a process that should run and does not."""
        spared = None if but_router is None else self._spec.routers[but_router]
        for child in self._supervisor.children:
            if not child.running and child.spec.name != spared:
                return f"{child.spec.name} ended by itself; its last lines:\n{child.tail}"
        if self.load is not None and not self.load.child.running and not self.load.counts:
            return f"the load generator ended by itself; its last lines:\n{self.load.child.tail}"
        return None

    def start_load(self) -> None:
        """Start sending the workload; for load runs time starts here."""
        name = f"load-{self._spec.engine}"
        self.stop_load()
        self.load = LoadRun(name, self._plan.arrivals, MODEL, self.routers, self._plan.log)
        self.load.start()

    def end_load(self) -> None:
        """Stop sending, without waiting for open streams."""
        if self.load is not None:
            self.load.end()

    def stop_load(self) -> None:
        """Stop sending and wait for open streams."""
        if self.load is not None:
            self.load.drain()

    def close(self) -> None:
        """End the load at once; the supervisor ends the rest."""
        if self.load is not None:
            self.load.abort()

    def observe(self) -> Sample:
        """Ask its routers once more, and keep what they say."""
        assert self.load is not None
        self.samples.append(observe(self.routers, self.load.now_s()))
        return self.samples[-1]

    def _start(self, name: str, command: str, settings: Settings, ready_url: str) -> None:
        file = write_settings(settings, self._plan.folder / f"{name}.yaml")
        argv = [sys.executable, "-m", "evenload.cli.app", command, "--config", str(file)]
        self._supervisor.start(
            ChildSpec(
                name,
                argv,
                env=child_environment(settings),
                ready=lambda: answers(ready_url, timeout_s=1.0),
                restart=None,
            )
        )
