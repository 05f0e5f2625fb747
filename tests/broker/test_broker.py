import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from evenload.broker import Broker, BrokerError, BrokerStartError, DataFolderBusyError, JarMismatchError, jars
from evenload.broker.probe import brokers_known
from evenload.bus.topics import ensure_topics, specs, topic_names

pytestmark = pytest.mark.kafka

NAMES = topic_names()


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def answers(port: int) -> bool:
    try:
        return brokers_known("127.0.0.1", port) > 0
    except OSError:
        return False


async def write(bootstrap: str, value: bytes) -> None:
    await ensure_topics(bootstrap, specs(partitions=1))
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
    await producer.start()
    try:
        await producer.send_and_wait(NAMES.decisions, value)
    finally:
        await producer.stop()


async def read(bootstrap: str, count: int) -> list[bytes | None]:
    consumer = AIOKafkaConsumer(NAMES.decisions, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        async with asyncio.timeout(20):
            return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


def test_data_address_and_identity_survive_a_stop_and_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "a folder with spaces and é"
    broker = Broker(folder)
    assert not broker.running
    with pytest.raises(BrokerError, match="once it has been started"):
        assert broker.bootstrap
    with broker:
        address = broker.bootstrap
        identity = (folder / "log" / "meta.properties").read_text()
        assert broker.start() is broker  # does nothing when it runs
        asyncio.run(write(address, b"first"))

        began = time.monotonic()
        broker.stop()
        assert not broker.running
        assert time.monotonic() - began < 10, "SIGTERM should be enough"
        assert not answers(int(address.rpartition(":")[2]))

        broker.start()
        assert broker.bootstrap == address
        asyncio.run(write(address, b"second"))
        broker.kill()
        assert not broker.running

    with Broker(folder) as again:
        assert again.bootstrap == address
        assert asyncio.run(read(address, 2)) == [b"first", b"second"]
        assert (folder / "log" / "meta.properties").read_text() == identity
    again.stop()  # a second time does nothing


def test_a_second_broker_on_the_same_folder_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    with Broker(tmp_path) as first:
        with pytest.raises(DataFolderBusyError, match=f"{tmp_path}.*process {os.getpid()}.*another folder"):
            Broker(tmp_path).start()
        assert first.running
        assert answers(int(first.bootstrap.rpartition(":")[2]))


def test_the_broker_is_gone_when_its_owner_is_killed(tmp_path: Path) -> None:
    code = f"""
import threading, time
from evenload.broker import Broker
broker = Broker({str(tmp_path)!r})
thread = threading.Thread(target=broker.start)  # a thread that ends must not take the broker along
thread.start()
thread.join()
print(broker.pid, broker.bootstrap.rpartition(":")[2], flush=True)
time.sleep(120)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, port = map(int, owner.stdout.readline().split())
        assert answers(port)
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not answers(port))
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    with Broker(tmp_path) as successor:
        assert successor.bootstrap == f"127.0.0.1:{port}"


def test_kafka_that_ends_early_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    broker = Broker(tmp_path, properties={"log.cleaner.dedupe.buffer.size": "many"})
    with pytest.raises(BrokerStartError, match=r"kafka\.log:[\s\S]*log\.cleaner\.dedupe\.buffer\.size"):
        broker.start()
    assert not broker.running


def test_a_remembered_port_that_another_program_took_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (tmp_path / "port").write_text(f"{port}\n")
        with pytest.raises(BrokerStartError, match=f"port {port} .*remembered in {tmp_path}/port, is taken"):
            Broker(tmp_path).start()
        with pytest.raises(BrokerStartError, match=f"port {port} .*asked for, is taken"):
            Broker(tmp_path, port=port).start()


def test_a_broken_port_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "port").write_text("soon")
    with pytest.raises(BrokerError, match=f"{tmp_path}/port should hold a port number, not 'soon'"):
        Broker(tmp_path).start()


def test_a_jar_that_is_not_the_pinned_one_stops_the_start(tmp_path: Path) -> None:
    name = f"kafka_2.13-{jars.KAFKA_VERSION}.jar"
    pins = tmp_path / "jars.sha256"
    pins.write_text("".join(f"{'0' * 64 if n == name else d}  {n}\n" for n, d in jars.read_pins(jars.PINS).items()))
    broker = Broker(tmp_path / "kafka")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jars, "PINS", pins)
        with pytest.raises(JarMismatchError, match=f"{name} is not the pinned jar"):
            broker.start()
    assert not broker.running


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_its_address_and_ends_cleanly_on_a_signal(tmp_path: Path, ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "evenload.cli.app", "broker", "--port", "0", "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as owner:
        assert owner.stderr is not None
        line = next(line for line in owner.stderr if "Kafka answers at" in line)
        port = int((tmp_path / "port").read_text())
        assert f"127.0.0.1:{port}" in line
        assert str(tmp_path) in line
        assert answers(port)
        owner.send_signal(ending)
        owner.stderr.read()
    assert owner.returncode == (130 if ending == signal.SIGINT else 0)
    assert not answers(port)
