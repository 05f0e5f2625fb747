"""The stack in containers, for real: `make test-compose`. Without a Docker engine it fails; it is not skipped."""

import os
import shlex
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.compose_demo.__main__ import main

ROOT = Path(__file__).parents[2]
UP_S = 1200  # images are built first
PORTS = ("PROXY_PORT", "PROMETHEUS_PORT", "KAFKA_PORT")

pytestmark = [pytest.mark.compose, pytest.mark.timeout(UP_S + 600)]


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The stack under a project name of its own, on free ports; gone afterwards, with its volumes."""
    for name, port in zip(PORTS, free_ports(len(PORTS)), strict=True):
        monkeypatch.setenv(name, str(port))
    monkeypatch.setenv("COMPOSE_PROJECT_NAME", "evenload-test")
    monkeypatch.setenv("COMPOSE_PROFILES", "demo")
    compose = shlex.split(os.environ.get("COMPOSE", "docker compose"))
    up = [*compose, "up", "--detach", "--wait", *shlex.split(os.environ.get("COMPOSE_UP", "--build"))]
    try:
        subprocess.run(up, cwd=ROOT, check=True, timeout=UP_S)
        yield f"http://127.0.0.1:{os.environ['PROXY_PORT']}"
    finally:
        down = [
            *compose,
            "--profile",
            "demo",
            "--profile",
            "audit",
            "down",
            "--volumes",
            "--remove-orphans",
            "--timeout",
            "10",
        ]
        subprocess.run(down, cwd=ROOT, check=True, timeout=300)


def test_killing_a_router_and_a_scorer_fails_only_the_requests_that_were_on_the_router(
    stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["--url", stack]) == 0
