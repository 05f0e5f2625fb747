"""A lease is finished exactly once wherever the request is cut off: at each turn of the loop, by whoever."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from evenload.router.admission import Admission, Gate
from evenload.router.fake_wire import SSE_HEAD, Cut, Stall, Trickle, answer, chunk, content, error, response, role
from evenload.router.fakes import FakeDispatcher, FakeLease, ScriptedUpstream
from evenload.router.limits import Limits
from evenload.router.ports import Ask
from evenload.router.proxy import Proxy

TURNS = 60
STRIDE = {"retried": 5, "broken": 5}  # turns between two cuts, for requests that take many
BODIES = {
    "stream": b'{"model":"m","stream":true}',
    "plain": b'{"model":"m"}',
}
SCRIPTS: dict[str, list[list[Any]]] = {
    "usual": [answer("a", "b", "c")],
    "trickled": [[Trickle(b"".join(step for step in answer("a", "b") if isinstance(step, bytes)), 40)]],
    "retried": [[error(500, "boom")], answer("a")],
    "broken": [[SSE_HEAD, chunk(role() + content("a")), Stall(0.001), Cut()]],
    "plain": [[response(200, b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}')]],
}


class AsgiClient:
    """An ASGI client without a server, so that a test decides at which turn it leaves."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.left = asyncio.Event()
        self.messages: list[MutableMapping[str, Any]] = []

    async def receive(self) -> MutableMapping[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await asyncio.sleep(0)
        self.messages.append(message)


async def no_app(*_: Any) -> None:
    raise AssertionError("not for the inner app")


def scope() -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}


def check(dispatcher: FakeDispatcher, proxy: Proxy) -> None:
    assert [lease.finishes for lease in dispatcher.leases] == [1] * len(dispatcher.leases)
    assert len(proxy._exchange._watches) == 0
    assert proxy.gate is None or (proxy.gate.in_use, proxy.gate.queued) == (0, 0)


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_cancellation_at_any_turn_finishes_each_lease_once(name: str) -> None:
    async with ScriptedUpstream(*SCRIPTS[name] * (TURNS + 1)) as engine:
        for turn in range(TURNS):
            dispatcher = FakeDispatcher({"a": engine.url})
            proxy = Proxy(no_app, dispatcher, Limits(back_off_s=0.001), gate=Gate(Admission(1, 1, 5.0)))
            client = AsgiClient(BODIES["plain" if name == "plain" else "stream"])
            task = asyncio.create_task(proxy(scope(), client.receive, client.send))
            for _ in range(turn * STRIDE.get(name, 1)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            check(dispatcher, proxy)
            dispatcher.close()


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_client_that_leaves_at_any_turn_finishes_each_lease_once(name: str) -> None:
    async with ScriptedUpstream(*SCRIPTS[name] * (TURNS + 1)) as engine:
        for turn in range(TURNS):
            dispatcher = FakeDispatcher({"a": engine.url})
            proxy = Proxy(no_app, dispatcher, Limits(back_off_s=0.001), gate=Gate(Admission(1, 1, 5.0)))
            client = AsgiClient(BODIES["plain" if name == "plain" else "stream"])
            task = asyncio.create_task(proxy(scope(), client.receive, client.send))
            for _ in range(turn * STRIDE.get(name, 1)):
                await asyncio.sleep(0)
            for watch in list(proxy._exchange._watches._all):
                watch.look(0.0)  # listen now, without waiting for a tick
            client.left.set()
            async with asyncio.timeout(5):
                await task  # ends in order: leaving is no error
            check(dispatcher, proxy)
            dispatcher.close()


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_clients_deadline_at_any_turn_finishes_each_lease_once(name: str) -> None:
    async with ScriptedUpstream(*SCRIPTS[name] * (TURNS + 1)) as engine:
        for turn in range(TURNS):
            dispatcher = FakeDispatcher({"a": engine.url})
            proxy = Proxy(no_app, dispatcher, Limits(back_off_s=0.001), gate=Gate(Admission(1, 1, 5.0)))
            client = AsgiClient(BODIES["plain" if name == "plain" else "stream"])
            in_time = {**scope(), "headers": [(b"x-request-timeout-ms", b"60000")]}
            task = asyncio.create_task(proxy(in_time, client.receive, client.send))
            for _ in range(turn * STRIDE.get(name, 1)):
                await asyncio.sleep(0)
            for watch in list(proxy._exchange._watches._all):
                watch._over()
            async with asyncio.timeout(5):
                await task
            statuses = [message["status"] for message in client.messages if "status" in message]
            assert statuses in ([200], [504], [])  # none: in the moment in which the head was being sent
            assert "timeout" not in dispatcher.kinds
            check(dispatcher, proxy)
            dispatcher.close()


async def test_a_client_that_leaves_just_when_a_deadline_passes_is_gone_and_not_retried() -> None:
    async with ScriptedUpstream([Stall()]) as engine:
        dispatcher = FakeDispatcher({"a": engine.url, "b": engine.url})
        proxy = Proxy(no_app, dispatcher, Limits(first_token_s=1000.0))
        client = AsgiClient(BODIES["stream"])
        task = asyncio.create_task(proxy(scope(), client.receive, client.send))
        while not engine.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        (watch,) = proxy._exchange._watches._all
        watch.look(0.0)
        await asyncio.sleep(0)
        client.left.set()
        await asyncio.sleep(0)
        watch.look(1e12)  # both at once
        async with asyncio.timeout(5):
            await task
        assert dispatcher.kinds == ["client_gone"]
        check(dispatcher, proxy)
        dispatcher.close()


@pytest.mark.parametrize("at_once", ["left", "expired"])
async def test_who_cancels_the_request_at_the_same_moment_is_obeyed(at_once: str) -> None:
    async with ScriptedUpstream([Stall()]) as engine:
        dispatcher = FakeDispatcher({"a": engine.url, "b": engine.url})
        proxy = Proxy(no_app, dispatcher, Limits(first_token_s=1000.0))
        client = AsgiClient(BODIES["stream"])
        task = asyncio.create_task(proxy(scope(), client.receive, client.send))
        while not engine.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        (watch,) = proxy._exchange._watches._all
        if at_once == "left":
            watch.leave()
        else:
            watch.look(1e12)
        task.cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled(), "a server that stops its tasks must see them end so"
        assert dispatcher.kinds == ["client_gone"]  # and nobody else has been asked
        check(dispatcher, proxy)
        dispatcher.close()


class _StubbornResponse:
    status = 500
    headers: tuple[tuple[bytes, bytes], ...] = ()
    is_read = True

    async def read_all(self, limit: int) -> bytes:
        return b"no"

    def release(self) -> None:
        raise RuntimeError("the transport is broken")


class _StubbornUpstream:
    async def request(self, *_: Any) -> _StubbornResponse:
        return _StubbornResponse()


class _StubbornDispatcher(FakeDispatcher):
    def choose(self, request: Ask, tried: tuple[str, ...], attempt: int) -> FakeLease:
        lease = FakeLease("a", _StubbornUpstream(), attempt)  # type: ignore[arg-type]
        self.leases.append(lease)
        return lease


async def test_an_upstream_that_cannot_be_closed_still_frees_its_lease() -> None:
    dispatcher = _StubbornDispatcher({})
    proxy = Proxy(no_app, dispatcher)
    client = AsgiClient(BODIES["plain"])
    with pytest.raises(RuntimeError, match="transport"):
        await proxy(scope(), client.receive, client.send)
    check(dispatcher, proxy)
