"""The tier `compose` is run only when it is asked for by name: `make test-compose`, that is, `pytest -m compose`."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "compose: brings the stack up in containers; needs a Docker engine and images")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "compose" in config.getoption("-m", default=""):
        return
    left_out = [item for item in items if item.get_closest_marker("compose")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
