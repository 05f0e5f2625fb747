"""The benchmark runs, small, so that it does not rot."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "collector" / "bench.py"


@pytest.mark.e2e
def test_a_few_instances_are_polled_in_time_at_a_small_cost() -> None:
    arguments = [sys.executable, str(BENCH), "--instances", "4", "--poll-ms", "100", "--seconds", "1", "--json"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, timeout=60, env=environment)
    found = json.loads(done.stdout)
    assert found["failed"] == 0
    assert found["polls_per_s"] > 20  # of 40
    assert found["us_per_poll"] < 20_000
