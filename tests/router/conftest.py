"""These tests run on uvloop, as the router does; those with a router in them on both of its servers.

`behind_the_server` marks what is the same code on both: what the router learns of instances, counts, and decides.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from tests.router import stage

STAGES = ("stage", "fleet", "serve")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what stands on a stage twice, unless it looks at what lies behind the server only."""
    if any(mark.name == "behind_the_server" for mark in metafunc.definition.iter_markers()):
        return
    if inspect.iscoroutinefunction(metafunc.function) and any(hasattr(metafunc.module, name) for name in STAGES):
        metafunc.parametrize("http_server", stage.SERVERS, indirect=True)


@pytest.fixture(autouse=True)
def http_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of the server that `stage` and `fleet` use during the test; without `autouse` only who asks would get it."""
    stage.server = getattr(request, "param", stage.SERVERS[0])
    yield stage.server
    stage.server = stage.SERVERS[0]
