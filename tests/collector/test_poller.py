"""Polling a scripted engine."""

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evenload.collector.access import access_of
from evenload.collector.fakes import ScriptedServer, ok
from evenload.collector.models import listed
from evenload.collector.poller import Poller
from evenload.collector.watch import Watch
from evenload.schemas import EngineGauges, Event, Membership
from evenload.settings import InstanceSettings, SettingsError
from tests.authority import Authority

PAGE = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n"


MODELS = ok(b'{"object": "list", "data": [{"id": "m"}]}')


def poller_of(server: ScriptedServer, events: list[Event], timeout_s: float = 0.2, **more: Any) -> Poller:
    return Poller(Watch("gpu-1", 20), server.url, timeout_s, events.append, **more)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (the condition is what is waited for)
            await asyncio.sleep(0.005)


async def test_a_poll_tells_gauges_and_readiness() -> None:
    events: list[Event] = []
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
        with closing(poller_of(server, events)) as poller:
            await poller.poll()
    assert events == [
        EngineGauges(instance="gpu-1", running=3, waiting=1, kv_usage=0.5),
        Membership(instance="gpu-1", change="ready"),
    ]


async def test_an_engine_that_goes_and_comes_back_is_not_ready_and_ready_again() -> None:
    events: list[Event] = []
    server = ScriptedServer()
    server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
    await server.start()
    poller = poller_of(server, events)
    running = asyncio.create_task(poller.run(0))

    def changes() -> list[tuple[str, str]]:
        return [(event.change, event.cause) for event in events if isinstance(event, Membership)]

    await until(lambda: changes() == [("ready", "")])
    await server.stop()
    await until(lambda: changes() == [("ready", ""), ("not_ready", "refused")])
    await server.start()
    await until(lambda: changes() == [("ready", ""), ("not_ready", "refused"), ("ready", "")])
    running.cancel()
    await asyncio.wait([running])
    await server.stop()


async def test_a_hanging_engine_holds_up_one_poll_at_a_time_and_stays_a_member() -> None:
    events: list[Event] = []
    async with ScriptedServer() as server:
        server.answers = {"/metrics": None}
        poller = poller_of(server, events, timeout_s=0.1)
        running = asyncio.create_task(poller.run(0))
        await until(lambda: poller.failed >= 3)
        assert server.connections <= poller.polls
        assert not events
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b"")}
        await until(lambda: len(events) >= 2)
        assert poller.watch.failures == 0
        running.cancel()
        await asyncio.wait([running])


async def test_a_page_with_an_error_status_leads_to_a_look_at_health() -> None:
    events: list[Event] = []
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(b"", 500), "/health": ok(b"", 503)}
        with closing(poller_of(server, events)) as poller:
            await poller.poll()
    assert events == [Membership(instance="gpu-1", change="not_ready", cause="health_503")]


async def test_a_poll_never_takes_longer_than_its_limit() -> None:
    events: list[Event] = []
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": None}
        begun_s = time.monotonic()
        with closing(poller_of(server, events, timeout_s=0.1)) as poller:
            await poller.poll()
        assert time.monotonic() - begun_s < 2
    assert [type(event) for event in events] == [EngineGauges]


async def test_an_engine_is_ready_when_it_lists_a_model_that_it_is_to_serve() -> None:
    """F44."""
    events: list[Event] = []
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b""), "/v1/models": ok(b'{"data": []}')}
        with closing(poller_of(server, events, models=("n", "m"))) as poller:
            await poller.poll()
            server.answers["/v1/models"] = ok(b'{"data": [{"id": "other"}]}')
            await poller.poll()
            assert [e.cause for e in events if isinstance(e, Membership)] == ["model_not_loaded"]
            server.answers["/v1/models"] = MODELS
            await poller.poll()
            await poller.poll()
    assert [e.change for e in events if isinstance(e, Membership)] == ["not_ready", "ready"]
    assert server.requests.count("/v1/models") == 3


@pytest.mark.parametrize(
    ("status", "body", "wanted", "loaded"),
    [
        (200, b'{"data": [{"id": "a"}, {"id": "b"}]}', ("x", "b"), True),
        (200, b'{"data": [{"id": "a"}]}', ("x",), False),
        (200, b'{"data": [{"id": "a"}]}', (), True),
        (200, b'{"data": []}', (), False),
        (503, b'{"error": {"code": 503, "message": "Loading model"}}', (), False),
        (404, b"", (), None),
        (401, b"", (), None),
        (200, b"<html>", (), None),
        (200, b'{"data": 7}', (), None),
        (200, b'{"data": [{"id": []}]}', (), None),
    ],
)
def test_what_a_list_of_models_says(status: int, body: bytes, wanted: tuple[str, ...], loaded: bool | None) -> None:
    assert listed(status, body, wanted) is loaded


async def test_engines_other_than_vllm_may_call_their_model_what_they_like() -> None:
    events: list[Event] = []
    async with ScriptedServer() as server:
        page = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"
        models = ok(b'{"data": [{"id": "/models/qwen.gguf"}]}')
        server.answers = {"/metrics": ok(page), "/health": ok(b""), "/v1/models": models}
        with closing(poller_of(server, events, models=("qwen",))) as poller:
            await poller.poll()
            assert poller.endpoint.kind == "llamacpp"
    assert events == [
        EngineGauges(instance="gpu-1", running=1, waiting=0),
        Membership(instance="gpu-1", change="ready"),
    ]


async def test_a_page_elsewhere_is_asked_there_and_health_here() -> None:
    events: list[Event] = []
    async with ScriptedServer() as server, ScriptedServer() as elsewhere:
        server.answers = {"/health": ok(b"")}
        elsewhere.answers = {"/pages/metrics": ok(b'nv_trt_llm_request_metrics{request_type="waiting"} 4\n')}
        with closing(poller_of(server, events, metrics_url=elsewhere.url + "/pages/metrics")) as poller:
            await poller.poll()
    assert isinstance(events[0], EngineGauges)
    assert (events[0].waiting, poller.endpoint.kind) == (4, "triton")
    assert (server.requests, elsewhere.requests) == (["/health", "/v1/models"], ["/pages/metrics"])


async def test_an_engine_without_a_page_is_ready_by_its_health() -> None:
    events: list[Event] = []
    async with ScriptedServer() as server:
        server.answers = {"/health": ok(b"")}
        with closing(poller_of(server, events)) as poller:
            await poller.poll()
    assert events == [Membership(instance="gpu-1", change="ready")]


async def test_polls_of_one_instance_never_pile_up_and_hold_up_no_other() -> None:
    """F46."""
    events: list[Event] = []
    async with ScriptedServer() as hanging, ScriptedServer() as good:
        hanging.answers = {"/metrics": None}
        good.answers = {"/metrics": ok(PAGE), "/health": ok(b""), "/v1/models": MODELS}
        stuck, free = poller_of(hanging, [], timeout_s=5), poller_of(good, events, timeout_s=5)
        tasks = [asyncio.create_task(poller.run(0)) for poller in (stuck, free)]
        await until(lambda: free.polls >= 20)
        assert (stuck.polls, hanging.connections) == (1, 1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def instance(**fields: Any) -> InstanceSettings:
    return InstanceSettings.model_validate({"id": "gpu-1", "url": "http://h:1", **fields})


async def test_an_engine_that_wants_a_key_is_asked_with_its_own(tmp_path: Path) -> None:
    """vLLM with --api-key refuses /v1/models without."""
    file = tmp_path / "key"
    file.write_text("sk-first\n")
    events: list[Event] = []
    access = access_of(instance(api_key_file=file, headers={"x-team": "a"}), {})
    async with ScriptedServer() as server:
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b""), "/v1/models": MODELS}
        with closing(poller_of(server, events, access=access)) as poller:
            await poller.poll()
        assert [head.split(b"\r\n")[0].split()[1] for head in server.heads] == [b"/metrics", b"/health", b"/v1/models"]
        for head in server.heads:
            assert b"authorization: Bearer sk-first\r\n" in head
            assert b"x-team: a\r\n" in head
    assert Membership(instance="gpu-1", change="ready") in events


async def test_a_page_at_another_address_gets_no_key() -> None:
    async with ScriptedServer() as server, ScriptedServer() as other:
        server.answers, other.answers = {"/health": ok(b""), "/v1/models": MODELS}, {"/metrics": ok(PAGE)}
        access = access_of(instance(api_key_env="KEY"), {"KEY": "sk-secret"})
        with closing(poller_of(server, [], access=access, metrics_url=f"{other.url}/metrics")) as poller:
            await poller.poll()
        assert b"sk-secret" in server.heads[0]
        assert b"sk-secret" not in b"".join(other.heads)


def test_a_key_that_is_missing_is_warned_of_and_not_fatal(caplog: pytest.LogCaptureFixture) -> None:
    access = access_of(instance(api_key_env="NOT_THERE"), {})
    assert access.headers() == {}
    assert "gpu-1 is asked without its key, which is missing or empty (environment NOT_THERE)" in caplog.text


async def test_an_engine_behind_tls_is_asked_with_the_authority_that_is_given(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusting = access_of(instance(ca_file=authority.file), {})
    async with ScriptedServer(authority.server_context("127.0.0.1")) as server:
        server.answers = {"/metrics": ok(PAGE), "/health": ok(b""), "/v1/models": MODELS}
        url = f"https://127.0.0.1:{server.port}"
        for access, failed in ((trusting, 0), (None, 1)):
            with closing(Poller(Watch("gpu-1", 20), url, 2.0, lambda event: None, access=access)) as poller:
                await poller.poll()
                assert poller.failed == failed
    await asyncio.sleep(0.05)  # let the loop close what was refused


def test_a_file_of_authorities_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="ca_file: instance 'gpu-1': No such file"):
        access_of(instance(ca_file=tmp_path / "none"), {})
