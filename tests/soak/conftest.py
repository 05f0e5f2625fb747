"""The tier `soak` is run only when it is asked for by name: `make soak`, that is, `pytest -m soak tests/soak`."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: kills, stops and hands over real scorers for minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "soak" in config.getoption("-m", default=""):
        return
    left_out = [item for item in items if item.get_closest_marker("soak")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
