"""Engines with a provider in reserve, over real sockets: what clients get while the engines fail, hang or are slow."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from evenload.router.fake_wire import Stall, Step, answer, error
from evenload.router.fakes import ScriptedUpstream, post
from evenload.settings import Settings
from tests.router.stage import STREAM, replica

pytestmark = pytest.mark.behind_the_server

BROKEN: list[Step] = [error(500, "EngineCore encountered an issue")]
DELAY_S = 0.02


def after(seconds: float) -> list[Step]:
    """An answer whose first token takes so long."""
    return [Stall(seconds), *answer("Hi")]


class Mixed:
    """Engines "a", "b" ... and a provider "p" in reserve, each with a script that can change, behind a router."""

    def __init__(self, url: str, scripts: dict[str, list[Step]]) -> None:
        self._url = url
        self._scripts = scripts
        self.statuses: Counter[int] = Counter()

    def behave(self, script: list[Step]) -> None:
        """Let all engines do so from now on."""
        for name, own in self._scripts.items():
            if name != "p":
                own[:] = script

    async def ask(self, count: int, every_s: float = DELAY_S) -> Counter[str]:
        """Send requests at a pace; return who answered them."""
        tasks = []
        for _ in range(count):
            tasks.append(asyncio.create_task(post(self._url, STREAM)))
            await asyncio.sleep(every_s)
        answers = await asyncio.gather(*tasks)
        self.statuses = Counter(got.status for got in answers)
        return Counter(got.headers.get(b"x-evenload-instance", b"").decode() for got in answers)

    async def back_within(self, seconds: float) -> None:
        """Wait until the engines answer everything again."""
        async with asyncio.timeout(seconds):
            while (await self.ask(10))["p"]:
                assert self.statuses == {200: 10}


@contextlib.asynccontextmanager
async def mixed(engines: int, spill_over_ms: float | None = None, policy: str = "predictive") -> AsyncIterator[Mixed]:
    async with contextlib.AsyncExitStack() as stack:
        scripts = {name: after(DELAY_S) for name in [*"abc"[:engines], "p"]}
        served = {name: await stack.enter_async_context(ScriptedUpstream(script)) for name, script in scripts.items()}
        made = [
            {"id": name, "url": one.url, "kind": "none", "priority": int(name == "p")} for name, one in served.items()
        ]
        router = await stack.enter_async_context(replica(settings_of(made, spill_over_ms, policy), served))
        yield Mixed(router.url, scripts)


def settings_of(instances: list[dict[str, object]], spill_over_ms: float | None, policy: str) -> Settings:
    pool = {"name": "p", "models": ["tiny"], "policy": policy, "instances": instances, "spill_over_ms": spill_over_ms}
    return Settings.model_validate(
        {
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "router": {"seed": 1},
            "collector": {"buffer_events_max": 1000},
            "pools": [pool],
        }
    )


@pytest.mark.parametrize(
    ("policy", "spill_over_ms"),
    [("predictive", 1_500.0), ("predictive", None), ("peak-ewma-decay", None), ("round-robin", None)],
)
async def test_clients_notice_nothing_of_engines_that_all_fail_and_come_back(
    policy: str, spill_over_ms: float | None
) -> None:
    async with mixed(3, spill_over_ms, policy) as pool:
        assert (await pool.ask(60))["p"] == 0
        assert pool.statuses == {200: 60}
        pool.behave(BROKEN)
        assert (await pool.ask(60))["p"] == 60
        assert pool.statuses == {200: 60}
        pool.behave(after(DELAY_S))
        await pool.back_within(10)


async def test_engines_whose_ports_are_closed_leave_the_requests_to_the_reserve() -> None:
    async with ScriptedUpstream(after(0.0)) as gone:
        url = gone.url
    async with ScriptedUpstream(after(0.0)) as provider:
        closed: list[dict[str, object]] = [{"id": name, "url": url, "kind": "none"} for name in "abc"]
        instances: list[dict[str, object]] = [*closed, {"id": "p", "url": provider.url, "kind": "none", "priority": 1}]
        async with replica(settings_of(instances, 1_500.0, "predictive"), {"p": provider}) as router:
            pool = Mixed(router.url, {})
            assert (await pool.ask(40))["p"] == 40
            assert pool.statuses == {200: 40}


@pytest.mark.parametrize("policy", ["predictive", "peak-ewma-decay"])
async def test_the_reserve_joins_while_the_engines_are_over_the_limit(policy: str) -> None:
    async with mixed(2, 300.0, policy) as pool:
        assert (await pool.ask(60))["p"] == 0
        pool.behave(after(0.7))
        await pool.ask(30)
        assert (await pool.ask(40))["p"] >= 20
        pool.behave(after(DELAY_S))
        await pool.back_within(10)


async def test_requests_that_wait_spill_the_next_ones_before_any_has_been_answered() -> None:
    async with mixed(2, 600.0) as pool:
        await pool.ask(60)
        pool.behave(after(5.0))
        answered = await pool.ask(40, every_s=0.1)
        assert answered["p"] >= 15, "evidence for more than 600 ms takes 1 s"
        assert pool.statuses == {200: 40}
