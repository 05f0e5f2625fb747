"""Who may import whom, and what pure code may not touch (ARCHITECTURE.md)."""

import tomllib
from pathlib import Path

import pytest

from tests.architecture.rules import AUDITED, LAYERS, PURE, SHELLS, violations

ROOT = Path(__file__).parents[2]
ROOTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["dev-mode-dirs"]
FILES = sorted(path for root in ROOTS for path in (ROOT / root / "evenload").rglob("*.py"))


def package_of(path: Path) -> str:
    """The package of a source file: `scoring` for services/scorer/evenload/scoring/ewma.py."""
    parts = path.relative_to(ROOT).parts
    return parts[parts.index("evenload") + 1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_keeps_the_import_rules(path: Path) -> None:
    found = violations(path.read_text(encoding="utf-8"), package_of(path))
    assert not found, "\n" + "\n".join(f"{path.relative_to(ROOT)}:{violation}" for violation in found)


def test_the_namespace_has_no_init_file_and_each_package_one_root() -> None:
    assert FILES
    assert not [path for path in FILES if path.parent.name == "evenload"], "evenload is a namespace: packages only"
    homes: dict[str, set[Path]] = {}
    for path in FILES:
        homes.setdefault(package_of(path), set()).add(path.relative_to(ROOT).parents[-2])
    assert {name: roots for name, roots in homes.items() if len(roots) > 1} == {}
    assert homes.keys() <= LAYERS.keys(), "give a new package its place in tests/architecture/rules.py"


def test_the_layers_have_no_cycle_below_the_shells() -> None:
    done: set[str] = set()
    rest = LAYERS.keys() - SHELLS
    while rest:
        free = {name for name in rest if LAYERS[name] <= done}
        assert free, f"a cycle among {rest}"
        done |= free
        rest -= free


ALLOWED = [
    ("scoring", "from evenload.schemas.telemetry import FirstToken\nimport msgspec, hashlib, heapq"),
    ("routing", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from random import Random"),
    ("routing", "def draw(rng):\n    return rng.random()"),
    ("sim", "from random import Random\nrng = Random(7)"),
    ("sim", "import math\nx = math.log(2) + sum([1]) ** 2"),
    ("sim", "from evenload.routing.p2c import p2c"),
    ("bus", "from aiokafka import AIOKafkaProducer\nimport asyncio"),
    ("scorer", "import faust\nfrom mode.utils import times\nfrom evenload.bus.topics import specs"),
    ("router", "from evenload.routing import view\nimport time"),
    ("cli", "def run():\n    from evenload.router.main import run\n    run()"),
    ("cli", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from evenload.audit.findings import Report"),
    ("demo", "from evenload.cli.supervise import Supervisor\nasync def f():\n    import evenload.scorer.main"),
    ("scoring", "from . import ewma\nfrom .window import Window"),
    ("scoring", "text = 'import time'  # sum(x)"),
]


@pytest.mark.parametrize(("package", "source"), ALLOWED)
def test_what_is_allowed_passes(package: str, source: str) -> None:
    assert violations(source, package) == []


OFFENDING = [
    ("schemas", "import evenload.scoring", "may import no other package"),
    ("scoring", "from evenload.routing import view", "may import schemas"),
    ("scoring", "from evenload import routing", "may import schemas"),
    ("routing", "def f():\n    from evenload.bus import topics", "may import schemas, scoring"),
    ("routing", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import evenload.bus", "may import"),
    ("routing", "from evenload.router import app", "nobody imports a shell"),
    ("bus", "from evenload.collector import poller", "nobody imports a shell"),
    ("collector", "def f():\n    from evenload.router import app", "nobody imports a shell"),
    ("cli", "from evenload.router.main import run", "inside the function"),
    ("scoring", "from ..routing import view", "in full"),
    ("router", "import aiokafka.admin", "only evenload.bus imports aiokafka"),
    ("scorer", "from aiokafka import TopicPartition", "only evenload.bus imports aiokafka"),
    ("collector", "def f():\n    import faust", "only evenload.scorer imports faust"),
    ("audit", "from mode import Service", "only evenload.scorer imports mode"),
    ("schemas", "import asyncio", "synchronous"),
    ("scoring", "async def f(): ...", "synchronous"),
    ("routing", "from threading import Lock", "synchronous"),
    ("scoring", "import time", "now_ms"),
    ("sim", "from time import monotonic", "now_ms"),
    ("sim", "def f():\n    import datetime\n    return datetime.datetime.now()", "now_ms"),
    ("sim", "import random\nx = random.choice([1])", "rng"),
    ("sim", "from random import shuffle", "rng"),
    ("sim", "from random import Random\nrng = Random()", "rng"),
    ("routing", "from random import Random\nrng = Random(7)", "rng"),
    ("scoring", "from os import urandom", "as an argument"),
    ("schemas", "import uuid", "rng"),
    ("routing", "import secrets", "rng"),
    ("scoring", "import logging", "does not log"),
    ("scoring", "print(1)", "no I/O"),
    ("sim", "open('trace.csv')", "no I/O"),
    ("routing", "from fastapi import Request", "framework"),
    ("schemas", "import pydantic", "framework"),
    ("scoring", "import math", "libm"),
    ("routing", "from statistics import mean", "libm"),
    ("scoring", "import numpy as np", "processor"),
    ("scoring", "def f(x):\n    return sum(v for v in x)", "in a loop"),
    ("scoring", "def f(x):\n    return x ** 2", "x * x"),
    ("routing", "def f(x):\n    x **= 2", "x * x"),
    ("routing", "pow(2.0, 0.5)", "libm"),
    ("routing", "hash('a')", "digest"),
]


@pytest.mark.parametrize(("package", "source", "reason"), OFFENDING)
def test_what_is_forbidden_is_found_with_its_reason(package: str, source: str, reason: str) -> None:
    found = violations(source, package)
    assert len(found) == 1, found
    assert reason in str(found[0])


def test_audited_packages_are_pure_and_a_violation_names_its_line() -> None:
    assert AUDITED <= PURE <= LAYERS.keys()
    assert str(violations("x = 1\nimport time", "scoring")[0]).startswith("2: time: ")
