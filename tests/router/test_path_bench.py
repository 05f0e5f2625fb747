"""The count of a request's way through the router runs, small, so that it does not rot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "dataplane" / "path.py"


@pytest.mark.e2e
@pytest.mark.behind_the_server
def test_the_functions_of_a_request_are_counted() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(BENCH), "--lines", "400"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment)
    first, *lines = done.stdout.splitlines()
    assert first.startswith("a request: ")
    calls = {line.split("calls")[1].split()[0]: float(line.split("bytecodes")[1].split()[0]) for line in lines}
    # Each request is chosen for, sent and answered once, and its telemetry and decision are made.
    for name in ("Dispatcher.choose", "Attempt.finish", "Decided.record", "Emitter.add", "Exchange.respond"):
        assert calls[name] == pytest.approx(1.0, abs=0.1), name
