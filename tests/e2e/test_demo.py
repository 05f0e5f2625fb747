"""The demo from outside: real processes, real Kafka; what it says, what it returns, and what it leaves behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.e2e, pytest.mark.kafka]

STORY_S_MAX = 240.0  # on a busy machine; a quiet one needs about 70 s
OWN_PORT = {"scorer": ("scorer", "web_port"), "collector": ("collector", "metrics_port")}


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "evenload.cli.app", "demo", "--quick", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def ports_of(folder: Path) -> set[int]:
    """The ports of everything that has been started: engines, Kafka, routers, scorer and collector."""
    ports: set[int] = set()
    for file in (folder / ".evenload" / "demo").glob("*.yaml"):
        settings = yaml.safe_load(file.read_text())
        section, key = OWN_PORT.get(file.stem, ("router", "port"))
        urls = [instance["url"] for pool in settings["pools"] for instance in pool["instances"]]
        ports |= {int(address.rpartition(":")[2]) for address in (*urls, settings["kafka"]["bootstrap"])}
        ports.add(settings[section][key])
    return ports


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def processes_in(folder: Path) -> list[str]:
    """Command lines of processes whose working directory is the folder; empty where there is no /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == folder:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def assert_nothing_is_left(folder: Path, ports: set[int]) -> None:
    assert processes_in(folder) == []
    assert [port for port in ports if listening(port)] == []


@pytest.mark.timeout(300)
def test_the_shortened_story_holds_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path, "--json", "sum.json", "--markdown", "sum.md") as process:
        output, _ = process.communicate(timeout=STORY_S_MAX)
    summary = json.loads((tmp_path / "sum.json").read_text())
    assert process.returncode == 0, output
    assert summary["held"]
    assert [row["lane"] for row in summary["figures"]] == ["evenload", "round-robin", "least-connections"]
    assert summary["figures"][0]["lost"] == 0
    assert "SHORTENED" in (tmp_path / "sum.md").read_text()
    assert "The story held." in output
    ports = ports_of(tmp_path)
    assert len(ports) == 18 + 4 + 3  # engines, routers; Kafka, scorer, collector
    assert_nothing_is_left(tmp_path, ports)


@pytest.mark.timeout(120)
def test_ctrl_c_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        assert process.stdout is not None
        killer = threading.Timer(90, process.kill)
        killer.start()
        for line in process.stdout:
            if "slows" in line:
                break
        ports = ports_of(tmp_path)
        assert any(listening(port) for port in ports)
        assert len(processes_in(tmp_path)) >= 7 or not Path("/proc/self").exists()
        began_s = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        process.stdout.read()
        assert process.wait(30) == 130
        killer.cancel()
    assert time.monotonic() - began_s < 20
    assert_nothing_is_left(tmp_path, ports)


def test_a_bad_trace_stops_the_demo_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("nothing,known\n1,2\n")
    with demo(tmp_path, "--trace", "bad.csv") as process:
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "bad.csv:1" in output
    assert not (tmp_path / ".evenload").exists()
