"""The real parts under measurement: Kafka, topics of one case, scorer workers as processes."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from benchmarks.pipeline.machine import cpu_s, share_group_nice
from evenload.broker import Broker, ports
from evenload.bus.topics import TopicNames, ensure_topics, specs, topic_names

PATIENCE_S = 60.0
PARTITIONS = 4
SCORER = ("-m", "evenload.scorer")
_POLL_S = 0.02
_FAST_GROUPS = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "0"}


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it did not in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class Kafka:
    """A Kafka to measure on.

    Attributes:
        log_folder: where its logs lie; None when it is not ours.
        pid: of the broker; None when it is not ours.
        folder: for files of the run.
    """

    bootstrap: str
    folder: Path
    log_folder: Path | None = None
    pid: int | None = None

    def stored_bytes(self, topic: str) -> int:
        """Bytes of a topic as they lie in the log, compressed, which is also how they travel to a reader."""
        if self.log_folder is None:
            return 0
        return sum(path.stat().st_size for path in self.log_folder.glob(f"{topic}-*/*.log"))


@contextlib.contextmanager
def kafka(bootstrap: str | None = None) -> Iterator[Kafka]:
    """Start the embedded Kafka in a temporary folder, or take the one that runs at `bootstrap`."""
    with tempfile.TemporaryDirectory(prefix="evenload-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if bootstrap is not None:
            yield Kafka(bootstrap, folder)
            return
        with Broker(folder / "kafka", properties=_FAST_GROUPS) as broker:
            share_group_nice(broker.pid)
            yield Kafka(broker.bootstrap, folder, broker.folder / "log", broker.pid)


@dataclass(frozen=True, slots=True)
class Case:
    """Topics of one case under a prefix of their own, and a place for its workers' files."""

    kafka: Kafka
    prefix: str

    @property
    def names(self) -> TopicNames:
        """Names of the topics."""
        return topic_names(self.prefix)

    def worker(self, program: Sequence[str] = SCORER, **options: object) -> "Worker":
        """Describe a scorer worker of this case; options as in the section `scorer` of the settings."""
        return Worker(self, options, program)


@contextlib.contextmanager
def case(where: Kafka, timestamps: str = "LogAppendTime") -> Iterator[Case]:
    """Make the topics of a case, and delete them afterwards.

    Args:
        where: the Kafka.
        timestamps: of telemetry; CreateTime takes those that the writer gives.
    """
    prefix = f"bench-{uuid.uuid4().hex[:8]}"
    telemetry, *others = specs(prefix, PARTITIONS)
    telemetry = replace(telemetry, config={**telemetry.config, "message.timestamp.type": timestamps})
    asyncio.run(ensure_topics(where.bootstrap, (telemetry, *others)))
    try:
        yield Case(where, prefix)
    finally:
        with contextlib.suppress(KafkaError, OSError):
            asyncio.run(_delete(where.bootstrap, prefix))


async def _delete(bootstrap: str, prefix: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=5000)
    try:
        await admin.start()
        await admin.delete_topics([name for name in await admin.list_topics() if name.startswith(prefix)])
    finally:
        await admin.close()


def get(port: int, path: str) -> str:
    """Body of a page on this machine; empty when it does not answer with 200."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except (OSError, urllib.error.URLError):
        return ""


class Worker:
    """`python -m evenload.scorer` with a configuration of its own; use it as a context manager."""

    def __init__(self, owner: Case, options: dict[str, object], program: Sequence[str]) -> None:
        self.port = ports.choose_free("127.0.0.1")
        self._program = program
        folder = owner.kafka.folder
        self._config = folder / f"scorer-{self.port}.yaml"
        section = {"app_id": f"{owner.prefix}-scorer", "web_port": self.port, **options}
        self._config.write_text(
            f"kafka: {{bootstrap: '{owner.kafka.bootstrap}', topic_prefix: {owner.prefix}, partitions: {PARTITIONS}}}\n"
            f"scorer: {{{', '.join(f'{key}: {value}' for key, value in section.items())}}}\n"
        )
        self.log_path = folder / f"scorer-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id of the running worker."""
        assert self._process is not None, "the worker was not started"
        return self._process.pid

    def start(self) -> None:
        """Start it, without waiting."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._program],
                env=os.environ | {"EVENLOAD_CONFIG": str(self._config)},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self, timeout_s: float = 30.0) -> None:
        """End it as an operator would (SIGTERM), and wait until it is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout_s)
            self._process = None

    def ready(self) -> bool:
        """Whether it has taken over its partitions.

        Raises:
            RuntimeError: it has ended; the message has its log.
        """
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"the scorer ended: {self.log_path.read_text()[-2000:]}")
        return get(self.port, "/readyz") == "ready\n"

    def wait_ready(self) -> None:
        """Wait until it has taken over its partitions."""
        wait_for(self.ready, "scorer ready")

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return cpu_s(self.pid)

    def metrics(self) -> dict[str, float]:
        """Its metrics by name without prefix, each the sum over its labels."""
        found: dict[str, float] = {}
        for line in get(self.port, "/metrics").splitlines():
            if line.startswith("evenload_scorer_"):
                name = line.split("{")[0].split(" ")[0].removeprefix("evenload_scorer_")
                found[name] = found.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
        return found

    def events(self) -> int:
        """Telemetry events applied so far."""
        return int(self.metrics().get("events_total", 0))
