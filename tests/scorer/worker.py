"""A real scorer worker as a child process, and a client that reads and writes the topics beside it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from evenload.broker import ports
from evenload.schemas import Batch, encode

PATIENCE_S = 40.0
PROGRAM = ("-m", "evenload.scorer")


class WorkerProcess:
    """`python -m evenload.scorer`, or another program, with a configuration file of its own."""

    def __init__(
        self, folder: Path, bootstrap: str, prefix: str, session_s: int = 3, program: tuple[str, ...] = PROGRAM
    ) -> None:
        self._program = program
        self.port = ports.choose_free("127.0.0.1")
        self._config = folder / f"scorer-{self.port}.yaml"
        self._config.write_text(
            f"kafka: {{bootstrap: '{bootstrap}', topic_prefix: {prefix}}}\n"
            "pools: [{name: p, models: [m], policy: health, instances: [{id: i-0, url: 'http://127.0.0.1:1'}]}]\n"
            f"scorer: {{app_id: {prefix}-scorer, web_port: {self.port}, session_timeout_s: {session_s}}}\n"
        )
        self.log_path = folder / f"scorer-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._program],
                env=os.environ | {"EVENLOAD_CONFIG": str(self._config)},
                stdout=log,
                stderr=log,
            )

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self, timeout_s: float = 25.0) -> int:
        """Wait for it to end, and return its exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._process = None
        return code

    def code(self) -> int | None:
        """Return its exit code, None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def revive(self) -> None:
        """Start it again if its watchdog has ended it, as its supervisor does."""
        if self.code() == 1:
            self.start()

    def get(self, path: str) -> str:
        """Return the body of a page, empty when it does not answer with 200."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.URLError):
            return ""

    def ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log_path.read_text()
        return self.get("/readyz") == "ready\n"

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels; 0 when it is not there."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(f"evenload_scorer_{name}")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@contextlib.contextmanager
def running(*workers: WorkerProcess) -> Iterator[None]:
    """Start workers, wait until they are ready, and leave none behind."""
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            wait_for(worker.ready)
        yield
    finally:
        for worker in workers:
            worker.kill()


def wait_for(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s"
        time.sleep(0.05)


async def write(bootstrap: str, topic: str, records: list[tuple[int, Batch | bytes]]) -> None:
    """Append records to their partitions, in order."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=2) as producer:
        futures = [
            await producer.send(topic, encode(data) if isinstance(data, Batch) else data, partition=partition)
            for partition, data in records
        ]
        for future in futures:
            await future


async def read(bootstrap: str, topic: str, partition: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Return offset, timestamp, key and value of all records of a partition."""
    place = TopicPartition(topic, partition)
    found: list[tuple[int, int, bytes | None, bytes | None]] = []
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        await consumer.seek_to_beginning(place)
        while await consumer.position(place) < end:
            for records in (await consumer.getmany(place, timeout_ms=200)).values():
                found += [(r.offset, r.timestamp, r.key, r.value) for r in records]
    return found


async def forget(bootstrap: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([topic])
        for _ in range(100):
            if topic not in await admin.list_topics():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{topic} is still there")
    finally:
        await admin.close()
