"""Fixtures for all tests (kafka_fixtures.py and secured_kafka.py say what they give), and who shares the cores."""

import pytest

pytest_plugins = ["tests.kafka_fixtures", "tests.secured_kafka"]

# Real brokers and processes are started by one worker of pytest-xdist only: two at once would starve each other.
_PROCESSES = pytest.mark.xdist_group("processes")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names: list[str] = getattr(item, "fixturenames", [])
        if "bootstrap" in names or any(map(item.get_closest_marker, ("kafka", "e2e"))):
            item.add_marker(_PROCESSES)
