"""Which proxy is under test, and where the results go. From the environment, as `make conformance` sets it:

CONFORMANCE_URL with CONFORMANCE_PORTS: a proxy that runs already and was told to use engines on these ports.
CONFORMANCE_PEER: one of `peers.NAMES`, started here; Evenload itself unless said otherwise.
CONFORMANCE_REPORT: a JSON file for the results.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from evenload.broker import ports
from tests.absence import lacking
from tools.peers import Uninstallable

from .asks import PLAIN_ASK
from .client import ask
from .engines import PLAIN, Engines
from .peers import find
from .results import Results
from .target import Target

SETTLE_S = 75.0  # a peer's breaker may be open for a minute
ASIDE_S = 12.0


def pytest_configure(config: pytest.Config) -> None:
    report = os.environ.get("CONFORMANCE_REPORT")
    if report:
        config.pluginmanager.register(Results(Path(report)), "conformance-results")


def _given_ports() -> list[int]:
    given = os.environ.get("CONFORMANCE_PORTS", "")
    return [int(port) for port in given.replace(",", " ").split()]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def all_engines() -> AsyncIterator[Engines]:
    chosen = _given_ports() or [ports.choose_free("127.0.0.1") for _ in range(2)]
    async with Engines(chosen) as engines:
        yield engines


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def target(
    all_engines: Engines, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> AsyncIterator[Target]:
    url, name = os.environ.get("CONFORMANCE_URL"), os.environ.get("CONFORMANCE_PEER") or "evenload"
    results = pytestconfig.pluginmanager.get_plugin("conformance-results")
    if url:
        if not _given_ports():
            pytest.fail("CONFORMANCE_URL needs CONFORMANCE_PORTS: the engines' ports that the proxy was told of")
        found = Target("given", url, url, None)
    else:
        try:
            peer = await asyncio.to_thread(find, name)
        except Uninstallable as error:
            if results is not None:
                results.absent = str(error)
            lacking(str(error))
        found = Target.of(name, peer, [engine.port for engine in all_engines.each], tmp_path_factory.mktemp(name))
    if results is not None:
        results.name, results.title = found.name, found.title
    async with found.running():
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def engines(all_engines: Engines, target: Target) -> Engines:
    """The engines, good and in use again after whatever the last check did to them."""
    all_engines.script(PLAIN)
    loop = asyncio.get_running_loop()
    began_s, good = loop.time(), 0
    while good < 2 or _misses_one(all_engines, target, loop.time() - began_s):
        reply = await ask(target.url, PLAIN_ASK)
        good = good + 1 if reply.status == 200 and reply.whole else 0
        if loop.time() - began_s > SETTLE_S:
            pytest.fail(f"after the last check {target.title} did not come back within {SETTLE_S:g} s: {reply}")
        if good != 1:
            await asyncio.sleep(0.1)
    all_engines.script(PLAIN)
    return all_engines


def _misses_one(engines: Engines, target: Target, waited_s: float) -> bool:
    """Whether an engine is still put aside for what the last check did, so that there is nobody to turn to.

    Evenload turns to one that it has put aside when there is no other; its checks do without the wait.
    """
    return target.name != "evenload" and len(engines.asked_of) < len(engines.each) and waited_s < ASIDE_S
