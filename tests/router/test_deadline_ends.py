"""The client's own deadline at moments that no clock hits reliably, and what is left of it afterwards."""

import asyncio
import gc
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from evenload.router.fake_wire import Stall
from evenload.router.fakes import FakeDispatcher, ScriptedUpstream, post
from evenload.router.limits import Limits
from evenload.router.proxy import Proxy
from evenload.router.watch import Watch
from tests.router.stage import GOOD, GOOD_BODY, STREAM, stage
from tests.router.test_release import BODIES, AsgiClient, check, no_app, scope

DEADLINE = (b"x-request-timeout-ms", b"60000")


@pytest.mark.behind_the_server
@pytest.mark.parametrize(
    ("left_s", "kind", "code"),
    [(-0.001, "timeout", b"upstream_first_token"), (9.0, "client_gone", b"deadline_exceeded")],
)
async def test_an_instance_whose_limit_has_passed_unseen_is_blamed_at_the_deadline(
    left_s: float, kind: str, code: bytes
) -> None:
    async with ScriptedUpstream([Stall()]) as engine:
        dispatcher = FakeDispatcher({"a": engine.url})
        proxy = Proxy(no_app, dispatcher, Limits(attempts_max=1))
        client = AsgiClient(BODIES["stream"])
        task = asyncio.create_task(proxy({**scope(), "headers": [DEADLINE]}, client.receive, client.send))
        while not engine.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        (watch,) = proxy._exchange._watches._all
        watch.limit(left_s, "first_token")
        watch._over()  # before the next tick
        async with asyncio.timeout(5):
            await task
        assert dispatcher.kinds == [kind]
        assert code in client.messages[-1]["body"]
        check(dispatcher, proxy)
        dispatcher.close()


class _Full(AsgiClient):
    """Does not take one of the messages, as a client that does not read."""

    def __init__(self, refuses: Callable[[MutableMapping[str, Any]], bool]) -> None:
        super().__init__(BODIES["stream"])
        self.full = asyncio.Event()
        self.ends = 0
        self._refuses = refuses

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.ends += not message.get("more_body", True)
        if self._refuses(message):
            self.full.set()
            await asyncio.sleep(3600)
        await super().send(message)


async def at_the_deadline_of(client: _Full, script: list[Any]) -> list[str | None]:
    """Let the deadline pass while the client does not take its message; returns how the attempts ended."""
    async with ScriptedUpstream(script) as engine:
        dispatcher = FakeDispatcher({"a": engine.url})
        proxy = Proxy(no_app, dispatcher)
        task = asyncio.create_task(proxy({**scope(), "headers": [DEADLINE]}, client.receive, client.send))
        async with asyncio.timeout(5):
            await client.full.wait()
            (watch,) = proxy._exchange._watches._all
            watch._over()
            await task
        check(dispatcher, proxy)
        dispatcher.close()
        return list(dispatcher.kinds)


@pytest.mark.behind_the_server
@pytest.mark.parametrize("script", [GOOD, [*GOOD[:-3], Stall(0.05), *GOOD[-3:]]], ids=["held", "passing"])
async def test_an_end_that_the_client_has_not_taken_is_none(script: list[Any]) -> None:
    client = _Full(lambda message: b"[DONE]" in message.get("body", b""))
    assert await at_the_deadline_of(client, script) == ["client_gone"]


@pytest.mark.behind_the_server
async def test_a_response_that_is_being_ended_is_not_ended_again() -> None:
    client = _Full(lambda message: not message.get("more_body", True))
    assert await at_the_deadline_of(client, GOOD) == ["ok"]
    assert client.ends == 1


async def test_a_deadline_that_was_not_reached_keeps_nothing_of_its_request() -> None:
    before = watches()
    async with stage(GOOD) as s:
        assert (await post(s.url, STREAM, DEADLINE)).body == GOOD_BODY
    assert watches() <= before


def watches() -> int:
    """How many there are, of requests that are over too."""
    gc.collect()
    return sum(isinstance(one, Watch) for one in gc.get_objects())
