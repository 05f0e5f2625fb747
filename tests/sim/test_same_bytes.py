"""The same seed gives the same bytes, also in another process that hashes text differently."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenload.sim.simulation import simulate
from tests.sim.fleets import PROVIDERS, case, jobs_of

ROOT = Path(__file__).parents[2]
PRINT_DIGEST = """
from evenload.sim.simulation import simulate
from tests.sim.fleets import PROVIDERS, case, jobs_of
print(simulate(case(PROVIDERS, "health-ramp", 5), jobs_of(PROVIDERS, 5)).digest())
"""


@pytest.mark.parametrize("hash_seed", ["1", "4242"])
def test_another_process_with_another_hash_seed_gives_identical_bytes(hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(
        [sys.executable, "-c", PRINT_DIGEST], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == simulate(case(PROVIDERS, "health-ramp", 5), jobs_of(PROVIDERS, 5)).digest()
