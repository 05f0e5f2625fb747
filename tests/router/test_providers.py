"""Requests as each preset's provider gets them, sent by the real router over real HTTP; and what stays secret."""

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from evenload.router.fake_wire import DONE, answer, content, error, finish, response, role, sse
from evenload.router.fakes import ScriptedUpstream, post
from evenload.router.shape import Shape
from evenload.router.upstream import Upstream
from evenload.router.upstreams import upstreams
from evenload.settings import Settings
from evenload.settings.instance_keys import FileKey
from evenload.settings.providers import PRESETS, read_key
from tests.router.stage import Fleet, events, replica

BODY = (
    b'{ "model" : "chat-large",  "stream": true, "messages": [{"role": "user", "content": "\\"model\\": \xc3\xa4"}] }'
)
SECRET = "sk-very-secret"


def settings_of(*instances: dict[str, Any], **pool: Any) -> Settings:
    return Settings.model_validate(
        {
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "router": {"seed": 1},
            "collector": {"buffer_events_max": 1000},
            "pools": [{"name": "p", "models": ["chat-large"], "instances": list(instances), **pool}],
        }
    )


def at(engine: ScriptedUpstream, preset: str, **more: Any) -> dict[str, Any]:
    """A preset whose host is the fake's."""
    path = {
        "azure": "/openai/v1",
        "azure-deployments": "",
        "bedrock": "/openai/v1",
    }.get(preset) or PRESETS[preset].url.partition("//")[2].partition("/")[2]
    return {"id": preset, "preset": preset, "url": f"{engine.url}/{path.lstrip('/')}", **more}


@pytest.mark.parametrize(
    ("preset", "path", "header", "value"),
    [
        ("openai", b"/v1/chat/completions", b"authorization", b"Bearer " + SECRET.encode()),
        ("qwen", b"/compatible-mode/v1/chat/completions", b"authorization", b"Bearer " + SECRET.encode()),
        ("hunyuan", b"/v1/chat/completions", b"authorization", b"Bearer " + SECRET.encode()),
        ("ark", b"/api/v3/chat/completions", b"authorization", b"Bearer " + SECRET.encode()),
        ("bedrock", b"/openai/v1/chat/completions", b"authorization", b"Bearer " + SECRET.encode()),
        ("azure", b"/openai/v1/chat/completions", b"api-key", SECRET.encode()),
        (
            "azure-deployments",
            b"/openai/deployments/theirs%20%2F1/chat/completions?api-version=2024-10-21",
            b"api-key",
            SECRET.encode(),
        ),
    ],
)
async def test_each_preset_sends_the_request_that_its_provider_documents(
    preset: str, path: bytes, header: bytes, value: bytes
) -> None:
    async with ScriptedUpstream(answer("Hi")) as engine:
        given = at(engine, preset, model_names={"chat-large": "theirs /1"}, headers={"X-Trace": "on"})
        settings = settings_of(given)
        async with replica(settings, {preset: engine}, {PRESETS[preset].key_env: SECRET}) as f:
            got = await post(f.url, BODY, (b"authorization", b"Bearer of-the-client"), path="/v1/chat/completions?x=1")
        assert got.status == 200
        (seen,) = engine.requests
        expected = path if b"?" in path else path + b"?x=1"
        assert (seen.method, seen.path) == (b"POST", expected)
        assert seen.headers[header] == value
        assert seen.headers[b"x-trace"] == b"on"
        assert b"of-the-client" not in b"".join(seen.headers.values())
        assert seen.body == BODY.replace(b'"chat-large"', b'"theirs /1"'), "all but the name is as it came"
        assert seen.headers[b"host"] == engine.url.removeprefix("http://").encode()
        assert int(seen.headers[b"content-length"]) == len(seen.body)


def test_every_preset_is_among_them() -> None:
    marks = test_each_preset_sends_the_request_that_its_provider_documents.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in marks[0].args[1]} == set(PRESETS)


async def test_the_answer_shows_the_name_that_was_asked_for() -> None:
    theirs = content("Hi").replace(b'"model":"tiny"', b'"model":"theirs"')
    async with ScriptedUpstream(sse(role(), theirs, finish(), DONE)) as engine:
        settings = settings_of(at(engine, "qwen", model_names={"*": "theirs"}), response_model="client")
        async with replica(settings, {"qwen": engine}, {"DASHSCOPE_API_KEY": SECRET}) as f:
            got = await post(f.url, BODY)
        assert json.loads(engine.requests[0].body)["model"] == "theirs"
        assert {event["model"] for event in events(got)} == {"chat-large"}


async def test_each_instance_of_a_retry_gets_its_own_path_key_and_name() -> None:
    busy = [error(429, "Rate limit reached", code="rate_limit_exceeded")]
    async with ScriptedUpstream(busy) as first, ScriptedUpstream(answer("Hi")) as second:
        settings = settings_of(
            at(first, "qwen", model_names={"chat-large": "qwen-plus"}, priority=0),
            at(second, "ark", model_names={"chat-large": "ep-1"}, priority=1),
        )
        environ = {"DASHSCOPE_API_KEY": "sk-q", "ARK_API_KEY": "sk-a"}
        async with replica(settings, {"qwen": first, "ark": second}, environ) as f:
            assert (await post(f.url, BODY)).status == 200
            assert f.state("qwen").cooling_cause == "quota"
        for engine, key, name in ((first, b"Bearer sk-q", "qwen-plus"), (second, b"Bearer sk-a", "ep-1")):
            (seen,) = engine.requests
            assert (seen.headers[b"authorization"], json.loads(seen.body)["model"]) == (key, name)


async def test_a_body_nested_to_the_limit_is_served_or_refused_but_no_fault_of_the_router() -> None:
    async with ScriptedUpstream([response(200, b"{}")]) as engine:
        settings = settings_of({"id": "a", "url": engine.url, "kind": "none", "model_names": {"*": "theirs"}})
        async with replica(settings, {"a": engine}) as f:
            statuses = []
            for depth in range(700, sys.getrecursionlimit(), 4):
                body = b'{"x":' + b"[" * depth + b"]" * depth + b',"model":"chat-large"}'
                statuses.append((await post(f.url, body)).status)
            assert set(statuses) == {200, 400}
            assert statuses == sorted(statuses)


async def test_a_long_quota_cools_as_long_as_the_cap_allows_and_a_short_one_for_seconds() -> None:
    for code, least_s, most_s in (("insufficient_quota", 50, 60), ("rate_limit_exceeded", 1, 5)):
        async with ScriptedUpstream([error(429, "No", code=code)]) as engine:
            settings = settings_of(at(engine, "openai"))
            async with replica(settings, {"openai": engine}, {"OPENAI_API_KEY": SECRET}) as f:
                got = await post(f.url, BODY)
                assert got.status == 429
                assert least_s <= int(got.headers[b"retry-after"]) <= most_s
                assert (f.state("openai").cooling_cause, f.state("openai").errors) == ("quota", 0)


async def test_a_refused_key_is_the_instances_fault_and_its_words_stay_inside() -> None:
    refusal = [error(401, f"Incorrect API key provided: {SECRET[:6]}***.", code="invalid_api_key")]
    async with ScriptedUpstream(refusal) as engine:
        settings = settings_of(at(engine, "openai"), retries={"attempts_max": 1})
        async with replica(settings, {"openai": engine}, {"OPENAI_API_KEY": SECRET}) as f:
            got = await post(f.url, BODY)
            assert (got.status, got.error["code"]) == (502, "upstream_unauthorized")
            assert SECRET[:6].encode() not in got.body
            assert (f.state("openai").errors, f.state("openai").cause) == (1, "unauthorized")


async def test_a_clients_own_organization_blames_nobody_and_the_accounts_stays_inside() -> None:
    account = [("openai-organization", "acme"), ("openai-project", "proj_1"), ("openai-model", "theirs-2026")]
    body = b'{"model":"theirs","choices":[]}'
    async with ScriptedUpstream([response(200, body, *account, ("x-ratelimit-remaining-tokens", "7"))]) as engine:
        settings = settings_of(at(engine, "openai", model_names={"*": "theirs"}), response_model="client")
        async with replica(settings, {"openai": engine}, {"OPENAI_API_KEY": SECRET}) as f:
            mine = ((b"openai-organization", b"org-mine"), (b"openai-project", b"proj-mine"), (b"openai-beta", b"x=1"))
            got = await post(f.url, {"model": "chat-large"}, *mine)
        (seen,) = engine.requests
        assert {name for name in seen.headers if name.startswith(b"openai-")} == {b"openai-beta"}
        assert got.status == 200
        told = b" ".join([*(name + value for name, value in got.headers.items()), got.body])
        assert all(word not in told for word in (b"acme", b"proj_1", b"theirs", b"ratelimit"))


async def test_a_providers_403_about_a_region_is_the_clients_and_blames_nobody_but_its_words_stay_inside() -> None:
    refusal = error(403, "Region not for the key sk-*** of acme", code="unsupported_country_region_territory")
    async with ScriptedUpstream([refusal]) as engine:
        settings = settings_of(at(engine, "openai"))
        async with replica(settings, {"openai": engine}, {"OPENAI_API_KEY": SECRET}) as f:
            got = await post(f.url, BODY)
            assert (got.status, got.error["code"]) == (403, "upstream_rejected")
            assert b"acme" not in got.body
            assert (f.state("openai").errors, f.state("openai").cooling_until_ms) == (0, 0)


async def test_a_request_larger_than_a_minutes_tokens_is_tried_elsewhere_and_cools_nobody() -> None:
    refusal = [error(429, "Request too large for m in organization org-secret: Limit 3", code="rate_limit_exceeded")]
    async with ScriptedUpstream(refusal) as small, ScriptedUpstream(refusal, answer("Hi")) as large:
        settings = settings_of(at(small, "openai"), at(large, "qwen", priority=1), retries={"attempts_max": 2})
        environ = {"OPENAI_API_KEY": SECRET, "DASHSCOPE_API_KEY": SECRET}
        async with replica(settings, {"openai": small, "qwen": large}, environ) as f:
            refused = await post(f.url, BODY)
            assert (refused.status, refused.error["code"]) == (413, "upstream_over_limit")
            assert b"org-secret" not in refused.body
            assert (await post(f.url, BODY)).status == 200
            assert {f.state(name).cooling_until_ms for name in ("openai", "qwen")} == {0}


async def test_no_page_no_log_and_no_representation_has_a_key(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "key"
    file.write_text(SECRET)
    async with ScriptedUpstream(answer("Hi")) as engine:
        settings = settings_of(
            at(engine, "openai"),
            at(engine, "qwen", api_key_file=str(file)),
        )
        async with replica(settings, {"openai": engine}, {"OPENAI_API_KEY": SECRET}) as f:
            for _ in range(6):
                await post(f.url, BODY)
            pages = [await post(f.url, b"", path=path, method="GET") for path in ("/fleet", "/metrics", "/v1/models")]
            shown = [repr(upstream) + repr(upstream.shape) for upstream in f.router.dispatcher.upstreams.values()]
        assert all(page.status == 200 for page in pages)
        text = caplog.text + "".join(shown) + repr(settings) + "".join(page.body.decode() for page in pages)
        assert SECRET not in text


# Keys in files.


async def test_a_key_in_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-1\n")
    now_s = 0.0
    key = FileKey(file, read_key(file), read_key, lambda: now_s)
    async with ScriptedUpstream([response(200, b"{}")]) as engine:
        client = Upstream(engine.url, shape=Shape(key=key))

        async def sent() -> bytes:
            answered = await client.request("POST", b"/v1/x", [], b"{}")
            await answered.read_all(10)
            answered.release()
            return engine.requests[-1].headers[b"authorization"]

        assert await sent() == b"Bearer sk-1"
        (tmp_path / "new").write_text("sk-2")
        (tmp_path / "new").replace(file)  # as secrets are rotated
        assert await sent() == b"Bearer sk-1", "it is not looked at for each request"
        now_s += 1.5
        assert await sent() == b"Bearer sk-2"
        client.close()


def test_a_key_file_that_goes_or_is_emptied_leaves_the_last_key_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "key"
    file.write_text("sk-1")
    now_s = 0.0
    key = FileKey(file, read_key(file), read_key, lambda: now_s)
    for step in (lambda: file.write_text(""), file.unlink, lambda: file.write_text("sk-three")):
        step()
        now_s += 2.0
        key.current()
    assert key.current() == "sk-three"
    assert caplog.text.count("stays in use") == 2
    assert "sk-" not in caplog.text


# Priorities.


async def test_a_mixed_pool_goes_to_the_provider_when_the_engine_is_gone_and_back_again() -> None:
    refused = [error(503, "The engine is currently busy and cannot accept new requests.")]
    async with ScriptedUpstream(refused, answer("Hi")) as engine, ScriptedUpstream(answer("Hi")) as provider:
        settings = settings_of(
            {"id": "engine", "url": engine.url, "kind": "none"},
            at(provider, "openai", priority=1),
            policy="predictive",
            spill_over_ms=1000,
            scoring={"cooling_ms_min": 300, "cooling_ms_max": 300},
        )
        names = {"engine": engine, "openai": provider}
        async with replica(settings, names, {"OPENAI_API_KEY": SECRET}) as f:
            assert (await _instance(f)) == "openai", "the retry goes on in the next tier"
            assert (await _instance(f)) == "openai", "the engine said that it is busy"
            page = json.loads((await post(f.url, b"", path="/fleet", method="GET")).body)
            (pool,) = page["pools"]
            assert [(one["priority"], one["excluded"]) for one in pool["instances"]] == [(0, "passed_over"), (1, "")]
            assert pool["spill_over_ms"] == 1000
            async with asyncio.timeout(5):
                while await _instance(f) != "engine":
                    pass
            page = json.loads((await post(f.url, b"", path="/fleet", method="GET")).body)
            assert [one["excluded"] for one in page["pools"][0]["instances"]] == ["", "reserve"]


async def _instance(fleet: Fleet) -> str:
    got = await post(fleet.url, BODY)
    assert got.status == 200
    return got.headers[b"x-evenload-instance"].decode()


def test_instances_that_need_nothing_have_no_shape() -> None:
    made = upstreams(settings_of({"url": "http://127.0.0.1:1"}), {})
    assert [upstream.shape for upstream in made.values()] == [None]
