"""Fixtures for all tests (kafka_fixtures.py and secured_kafka.py say what they give), and who shares the cores."""

from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["tests.kafka_fixtures", "tests.secured_kafka"]

_ROOT = Path(__file__).resolve().parents[1]


class OneForProcesses(LoadScopeScheduling):  # type: ignore[misc]
    """Tests go to whichever worker is free, but those of files that start brokers and processes all to one.

    Two workers with brokers of their own would starve each other, and tests of time limits with them.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "processes" if _starts_processes(nodeid.partition("::")[0]) else nodeid


@cache
def _starts_processes(file: str) -> bool:
    text = (_ROOT / file).read_text(encoding="utf-8")
    return any(mark in text for mark in ("mark.kafka", "mark.e2e"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    return OneForProcesses(config, log)
