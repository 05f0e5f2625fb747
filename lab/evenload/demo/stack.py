"""Everything that runs: Kafka, the lanes, scorer and collector; started in order, stopped in reverse."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from evenload.broker import Broker
from evenload.broker.lock import acquire
from evenload.broker.ports import choose_free
from evenload.cli.errors import CommandError
from evenload.cli.supervise import Supervisor
from evenload.demo.lane import HOST, Lane, LaneSpec, Plan
from evenload.demo.providers_story import TTFT_MS

FOLDER: Final = Path(".evenload") / "demo"
GRACE_S: Final = 8.0  # between SIGTERM and SIGKILL
HASTY_GRACE_S: Final = 2.0  # the same after Ctrl-C or an error
LOG_BYTES_MAX: Final = 4 * 1024 * 1024  # per process

EVENLOAD: Final = LaneSpec("evenload", "engine", "predictive", "evenload", ("router-a", "router-b"))
BASELINES: Final = (
    LaneSpec("round-robin", "rr", "round-robin", "baseline", ("router-rr",)),
    LaneSpec("least-connections", "lc", "least-connections", "baseline", ("router-lc",)),
)

PROVIDERS: Final = LaneSpec("providers", "provider", None, "evenload", ("router",), provider_ttft_ms=TTFT_MS)

Say = Callable[[str], None]


class LogFolder:
    """One bounded file per process."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._folder = folder
        self._bytes: dict[str, int] = {}

    def write(self, name: str, line: str) -> None:
        """Append a line; what exceeds the bound is left out, and the file says so."""
        size = self._bytes.get(name, 0)
        if size > LOG_BYTES_MAX:
            return
        text = f"{line}\n" if size + len(line) < LOG_BYTES_MAX else "(the rest is left out)\n"
        self._bytes[name] = size + max(len(text), 1) if size + len(line) < LOG_BYTES_MAX else LOG_BYTES_MAX + 1
        with (self._folder / f"{name}.log").open("a", encoding="utf-8") as file:
            file.write(text)


@contextmanager
def demo_folder(folder: Path) -> Iterator[Path]:
    """Own the demo's folder, with yesterday's Kafka data removed.

    Raises:
        CommandError: Another demo runs here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = acquire(folder / "lock", timeout_s=2.0)
    except TimeoutError:
        raise CommandError(f"another demo runs in {folder.absolute()}; wait for it, or use another directory") from None
    try:
        shutil.rmtree(folder / "kafka", ignore_errors=True)
        yield folder.absolute()
    finally:
        os.close(lock)


class Stack:
    """A context manager: leaving it stops all that was started, whatever happened.

    Attributes:
        broker: The embedded Kafka.
        story: The lane that the story is about, once started.
        baselines: The lanes to compare with, once started.
    """

    def __init__(self, plan: Plan, memory_mb: int, say: Say) -> None:
        self.plan = plan
        self.broker = Broker(plan.folder / "kafka", port=int(plan.bootstrap.rpartition(":")[2]), heap_mib=memory_mb)
        self.supervisor = Supervisor(plan.log)
        self.story: Lane | None = None
        self.baselines: list[Lane] = []
        self._say = say
        self._exits = ExitStack()

    def __enter__(self) -> "Stack":
        self._exits.callback(self.broker.stop)
        self._exits.push(self._stop_children)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._exits.__exit__(kind, error, at)

    def _stop_children(self, kind: type[BaseException] | None, *_: object) -> None:
        """All at once; without Kafka some would take their time, which somebody who pressed Ctrl-C does not have."""
        deadline_s = time.monotonic() + (GRACE_S if kind is None else HASTY_GRACE_S)
        for child in self.supervisor.children:
            child.send(signal.SIGTERM)
        for child in reversed(self.supervisor.children):
            child.stop(grace_s=max(0.1, deadline_s - time.monotonic()))

    def start_story(self) -> Lane:
        """Start Kafka, engines, scorer, collector and routers.

        Raises:
            BrokerError: Kafka did not start.
            ChildFailedError: A process did not become ready; the message has its last lines.
        """
        with self._timed("six simulated engines and Kafka (the first time it fetches 43 MB of jars)"):
            self.story = lane = self._lane(EVENLOAD)
            self.broker.start()
            self._create_topics()
            self.supervisor.wait_ready()
        with self._timed("scorer, collector and two routers"):
            lane.start_scorer()
            lane.start_collector()
            lane.start_routers()
            self.supervisor.wait_ready()
        return lane

    def start_providers(self) -> Lane:
        """Start Kafka, six providers, scorer and one router; there is nothing to collect.

        Raises:
            BrokerError, ChildFailedError: As `start_story`.
        """
        with self._timed("six simulated providers, Kafka, scorer and a router"):
            self.story = lane = self._lane(PROVIDERS)
            self.broker.start()
            self._create_topics()
            self.supervisor.wait_ready()
            lane.start_scorer()
            lane.start_routers()
            self.supervisor.wait_ready()
        return lane

    def start_baselines(self) -> list[Lane]:
        """Start the other fleets with a router each.

        Raises:
            ChildFailedError: As `start_story`.
        """
        with self._timed("the baselines: two more fleets, a router each"):
            self.baselines = [self._lane(spec) for spec in BASELINES]
            self.supervisor.wait_ready()
            for lane in self.baselines:
                lane.start_routers()
            self.supervisor.wait_ready()
        return self.baselines

    def kill(self) -> None:
        """End all processes but Kafka without grace; safe in a signal handler."""
        self.supervisor.kill()
        for lane in (self.story, *self.baselines):
            if lane is not None and lane.load is not None:
                lane.load.child.stop_now()

    def _lane(self, spec: LaneSpec) -> Lane:
        lane = Lane(self.supervisor, self.plan, spec)
        self._exits.callback(lane.close)
        return lane

    def _create_topics(self) -> None:
        from evenload.bus.topics import ensure_topics, specs

        for prefix in dict.fromkeys(spec.topic_prefix for spec in (EVENLOAD, *BASELINES)):
            asyncio.run(ensure_topics(self.broker.bootstrap, specs(prefix)))

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        self._say(f"starting {what} ...")
        start_s = time.monotonic()
        yield
        self._say(f"  ready after {time.monotonic() - start_s:.1f} s")


def free_bootstrap() -> str:
    """An address for Kafka that nobody uses."""
    return f"{HOST}:{choose_free(HOST)}"
