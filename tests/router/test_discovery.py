"""A router whose instances come and go: it follows its sources, and what is late is told of who it was about."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from evenload.api.keys import new_key
from evenload.router.build import build
from evenload.router.fake_wire import Gate as Held
from evenload.router.fake_wire import response
from evenload.router.fakes import Got, ScriptedUpstream, post
from evenload.router.reload import Reloads
from evenload.schemas import WIRE_VERSION, EngineGauges, Membership, SnapshotBatch
from evenload.scoring import apply, fresh, snapshot
from evenload.settings import Settings, SettingsError
from tests.router.stage import GOOD, GOOD_BODY, PLAIN, STREAM, Fleet, replica, until

ANSWER = response(200, b'{"choices":[]}')


@contextlib.asynccontextmanager
async def following(
    tmp_path: Path, *scripts: Any, listed: int = 0, operators: bool = False, **router: Any
) -> AsyncIterator[tuple[Fleet, str]]:
    """A router with `listed` of the engines in its list, and one pool with a file; the operators' key beside it."""
    secret, line = new_key("ops")
    (tmp_path / "keys").write_text(line)
    async with contextlib.AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(ScriptedUpstream(*script))
            for name, script in zip("abcdef", scripts, strict=False)
        }
        instances = [{"id": name, "url": engine.url, "kind": "none"} for name, engine in engines.items()]
        source = {"file": str(tmp_path / "engines"), "template": {"kind": "none"}}
        settings = Settings.model_validate(
            {
                "kafka": {"bootstrap": "127.0.0.1:1"},
                "collector": {"buffer_events_max": 1000},
                "discovery": {"look_s": 0.05, "changes_file": str(tmp_path / "changes")},
                "router": {"seed": 1, "admin_keys_file": str(tmp_path / "keys") if operators else None, **router},
                "pools": [{"name": "p", "models": ["tiny"], "instances": instances[:listed], "discovery": [source]}],
            }
        )
        f = await stack.enter_async_context(replica(settings, engines))
        f.router.discovery.start()
        stack.push_async_callback(f.router.discovery.close)
        yield f, secret


def write(tmp_path: Path, f: Fleet, *names: str) -> None:
    instances = [{"id": name, "url": f.engines[name].url} for name in names]
    (tmp_path / "new").write_text(json.dumps({"instances": instances}))
    (tmp_path / "new").rename(tmp_path / "engines")


def names(f: Fleet) -> tuple[str, ...]:
    return f.router.dispatcher.pools["p"].instances


async def page(f: Fleet, path: str) -> Any:
    return json.loads((await post(f.url, b"", path=path, method="GET")).body)


async def test_an_engine_that_a_file_names_gets_requests_and_none_when_it_no_longer_does(tmp_path: Path) -> None:
    held = Held(asyncio.Event())
    async with following(tmp_path, [GOOD], [GOOD, [held, ANSWER]]) as (f, _):
        write(tmp_path, f, "a")
        await until(lambda: names(f) == ("p:a",))
        assert (await post(f.url, STREAM)).body == GOOD_BODY
        write(tmp_path, f, "b")
        await until(lambda: names(f) == ("p:b",))
        assert (await post(f.url, STREAM)).body == GOOD_BODY
        under_way = asyncio.create_task(post(f.url, PLAIN))
        await until(lambda: f.requests("b") == 2)
        write(tmp_path, f, "a")
        await until(lambda: names(f) == ("p:a",))
        assert (await post(f.url, STREAM)).body == GOOD_BODY
        held.event.set()
        assert (await under_way).status == 200, "what runs there ends there"
        shown = (await page(f, "/fleet"))["pools"][0]["instances"]
        assert [one["instance"] for one in shown] == ["p:a"]


async def test_a_pool_without_anybody_says_so_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD]) as (f, _):
        got = await post(f.url, STREAM)
        assert (got.status, json.loads(got.body)["error"]["code"]) == (503, "no_instance")
        write(tmp_path, f, "a")
        await until(lambda: names(f) == ("p:a",))
        (tmp_path / "engines").write_text("instances: [}")
        await until(lambda: any(slot.failing for slot in f.router.discovery.slots))
        assert (await post(f.url, STREAM)).body == GOOD_BODY
        samples = await f.metrics()
        label = f'{{pool="p",source="file {tmp_path / "engines"}"}}'
        assert samples["evenload_discovery_failing" + label] == 1
        assert samples["evenload_discovery_instances" + label] == 1


async def test_a_router_is_not_ready_before_each_source_has_spoken(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD]) as (f, _):
        await f.router.discovery.close()
        for slot in f.router.discovery.slots:
            slot.instances, slot.failing = None, ""
        reasons = (await page(f, "/readyz"))["reasons"]
        assert f"instances are not known yet: pool p: file {tmp_path / 'engines'}" in reasons
        f.router.discovery.slots[0].failed("it is broken")
        assert not [reason for reason in (await page(f, "/readyz"))["reasons"] if "not known yet" in reason]


async def test_clients_of_instances_that_stay_keep_their_connections(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD], [GOOD]) as (f, _):
        write(tmp_path, f, "a")
        await until(lambda: names(f) == ("p:a",))
        client = f.router.dispatcher.upstreams["p:a"]
        write(tmp_path, f, "a", "b")
        await until(lambda: len(names(f)) == 2)
        assert f.router.dispatcher.upstreams["p:a"] is client
        assert (await post(f.url, STREAM)).body == GOOD_BODY


async def test_new_settings_do_not_forget_who_was_found(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD], [GOOD]) as (f, _):
        write(tmp_path, f, "a")
        await until(lambda: names(f) == ("p:a",))
        data = f.settings.model_dump(mode="json")
        data["pools"][0]["policy"] = "random"
        reloads = Reloads(f.router, lambda: Settings.model_validate(data), {})
        await reloads._once()
        assert names(f) == ("p:a",)
        assert f.router.dispatcher.pools["p"].policy.name == "random"
        write(tmp_path, f, "b")
        await until(lambda: names(f) == ("p:b",))
        assert f.router.dispatcher.pools["p"].policy.name == "random"


def show(f: Fleet, name: str, *events: Membership | EngineGauges) -> None:
    """A snapshot comes in which the log's events have made of the instance what they make of it."""
    dispatcher = f.router.dispatcher
    now_ms = dispatcher.log_clock.now_ms(dispatcher.clock())
    state = fresh(name, now_ms)
    for event in events:
        state = apply(state, event, now_ms)
    entry = dispatcher.view._entries[name]
    state.as_of = entry.base.as_of + 1
    batch = SnapshotBatch(
        v=WIRE_VERSION,
        partition=entry.partition,
        as_of=state.as_of,
        now_ms=now_ms,
        linger_ms=20,
        sequences={dispatcher.emitter.incarnation: 2**40},
        snapshots=[snapshot(state, now_ms)],
    )
    dispatcher.take_snapshots(0, batch)


async def test_what_becomes_of_a_request_is_told_of_the_generation_that_it_was_sent_to(tmp_path: Path) -> None:
    """An instance is taken out and comes back under its name while an old request runs: the new one is not blamed."""
    held = Held(asyncio.Event())
    broken = response(500, b"{}")
    async with following(tmp_path, [[held, broken], GOOD], listed=1) as (f, _):
        under_way = asyncio.create_task(post(f.url, PLAIN))
        await until(lambda: f.requests("a") == 1)
        left, back = Membership(instance="a", change="left"), Membership(instance="a", gen=1, change="joined")
        show(f, "a", left)
        got = await post(f.url, STREAM)
        assert (got.status, f.state("a").left_ms is not None) == (503, True)
        show(f, "a", left, back)
        assert (f.state("a").generation, f.view("a").score) == (1, 30.0)
        held.event.set()
        await under_way
        state = f.state("a")
        assert (state.errors, state.err_sum, state.older_generation) == (0, 0, 1)


async def test_requests_get_through_to_one_that_came_back(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD], listed=1) as (f, _):
        left, back = Membership(instance="a", change="left"), Membership(instance="a", gen=1, change="joined")
        show(f, "a", left, back)
        assert (await post(f.url, STREAM)).body == GOOD_BODY
        assert (f.state("a").successes, f.state("a").older_generation) == (1, 0)


async def test_a_pool_that_is_made_anew_goes_on_with_its_budget_of_retries(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD]) as (f, _):
        budget = f.router.dispatcher.pools["p"].retries
        while budget.take(0.0):
            pass
        write(tmp_path, f, "a")
        await until(lambda: names(f) == ("p:a",))
        now = f.router.dispatcher.pools["p"].retries
        assert (now.take(0.0), now.withheld) == (False, budget.withheld + 1)


def test_a_key_that_a_template_names_must_be_there_at_the_start() -> None:
    source = {"dns": "e.internal:80", "template": {"api_key_env": "NOT_THERE"}}
    settings = Settings.model_validate({"pools": [{"name": "p", "models": ["m"], "discovery": [source]}]})
    with pytest.raises(SettingsError) as caught:
        build(settings, {})
    reason = "the key of dns e.internal:80 is missing or empty"
    assert str(caught.value) == f"environment NOT_THERE: pools[0].discovery[0].template.api_key_env: {reason}"


# Operators.


def buffered(f: Fleet) -> int:
    return int(f.router.dispatcher.emitter.buffered)  # type: ignore[attr-defined]


async def ask(f: Fleet, secret: str | None, method: str, path: str, body: Any = b"") -> Got:
    headers = [] if secret is None else [(b"authorization", f"Bearer {secret}".encode())]
    return await post(f.url, body, *headers, path=f"/admin/instances{path}", method=method)


async def test_without_operators_keys_nobody_can(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD], listed=1) as (f, secret):
        got = await ask(f, secret, "GET", "")
        assert (got.status, json.loads(got.body)["error"]["code"]) == (403, "admin_off")
        assert "router.admin_keys_file" in json.loads(got.body)["error"]["message"]


async def test_every_path_wants_an_operators_key(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD], listed=1, operators=True) as (f, _):
        paths = (("GET", ""), ("POST", ""), ("DELETE", "/a"), ("POST", "/a/drain"), ("POST", "/a/undrain"))
        for method, path in paths:
            for wrong in (None, "ev-wrong"):
                got = await ask(f, wrong, method, path)
                assert (got.status, json.loads(got.body)["error"]["code"]) == (401, "invalid_api_key"), (method, path)
        assert not f.state("a").draining


async def test_one_is_drained_and_undrained_by_one_event_each(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD], [GOOD], listed=2, operators=True) as (f, secret):
        before = buffered(f)
        assert (await ask(f, secret, "POST", "/a/drain")).status == 200
        assert buffered(f) == before + 1
        for _ in range(5):
            await post(f.url, STREAM)
        assert (f.requests("a"), f.requests("b")) == (0, 5)
        rows = json.loads((await ask(f, secret, "GET", "")).body)["instances"]
        assert [(row["instance"], row["state"], row["source"]) for row in rows] == [
            ("a", "draining", "list"),
            ("b", "member", "list"),
        ]
        assert (await ask(f, secret, "POST", "/a/undrain")).status == 200
        assert not f.state("a").draining


async def test_one_is_added_and_taken_out(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD], [GOOD], listed=1, operators=True) as (f, secret):
        added = {"pool": "p", "id": "x", "url": f.engines["b"].url, "kind": "none"}
        before = buffered(f)
        got = await ask(f, secret, "POST", "", added)
        assert (got.status, json.loads(got.body)) == (200, {"instance": "p:x"})
        assert buffered(f) == before + 1, "the log hears of it, whether a collector follows the file or not"
        assert names(f) == ("a", "p:x")
        assert (await ask(f, secret, "POST", "", added)).status == 409
        assert (await ask(f, secret, "DELETE", "/a")).status == 200
        assert names(f) == ("p:x",)
        assert (await post(f.url, STREAM)).body == GOOD_BODY
        assert f.requests("b") == 1
        rows = json.loads((await ask(f, secret, "GET", "")).body)["instances"]
        assert [(row["instance"], row["state"]) for row in rows] == [("p:x", "member"), ("a", "taken out")]
        before = buffered(f)
        assert (await ask(f, secret, "POST", "", {"id": "a"})).status == 200, "it comes back"
        assert names(f) == ("a", "p:x")
        assert (buffered(f), f.state("a").draining) == (before + 1, False)


async def test_one_that_had_left_and_is_added_again_joins_as_the_next_generation(tmp_path: Path) -> None:
    held = Held(asyncio.Event())
    async with following(tmp_path, [GOOD], [[held, ANSWER]], listed=1, operators=True) as (f, secret):
        added = {"pool": "p", "id": "x", "url": f.engines["b"].url}
        assert (await ask(f, secret, "POST", "", added)).status == 200
        await ask(f, secret, "POST", "/a/drain")
        under_way = asyncio.create_task(post(f.url, PLAIN))  # for its sake the router does not forget the instance
        await until(lambda: f.requests("b") == 1)
        assert (await ask(f, secret, "DELETE", "/p:x")).status == 200
        show(f, "p:x", Membership(instance="p:x", change="left"))
        assert (await ask(f, secret, "POST", "", added)).status == 200
        assert (f.state("p:x").generation, f.state("p:x").left_ms) == (1, None)
        held.event.set()
        assert (await under_way).status == 200


async def test_operators_see_whose_gauges_do_not_come(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD], [GOOD], listed=1, operators=True) as (f, secret):
        added = {"pool": "p", "id": "x", "url": f.engines["b"].url, "kind": "vllm"}
        assert (await ask(f, secret, "POST", "", added)).status == 200

        async def gauges() -> dict[str, bool | None]:
            rows = json.loads((await ask(f, secret, "GET", "")).body)["instances"]
            return {row["instance"]: row["gauges"] for row in rows}

        assert await gauges() == {"a": None, "p:x": False}, "nobody polls x, and a has none, as a provider"
        show(f, "p:x", EngineGauges(instance="p:x", waiting=0))
        assert await gauges() == {"a": None, "p:x": True}


async def test_what_cannot_be_done_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD], listed=1, operators=True) as (f, secret):
        url = "http://127.0.0.1:1"
        for body, status, text in (
            (b"no JSON", 400, "must be a JSON object"),
            (b"[]", 400, "must be a JSON object"),
            ({"pool": "q", "url": url}, 404, "Name one of the pools: p"),
            ({"pool": "p"}, 400, "url: is required"),
            ({"pool": "p", "url": url, "weigth": 2}, 400, "did you mean 'weight'"),
            ({"pool": "p", "url": url, "api_key_env": "HOME"}, 403, "api_key_env: the settings name it for no"),
            ({"pool": "p", "url": url, "api_key_file": "/etc/hostname"}, 403, "api_key_file: the settings name it"),
            ({"pool": "p", "url": "https://127.0.0.1:1", "ca_file": "/not/there"}, 400, "/not/there"),
            ({"pool": "p", "url": "https://127.0.0.1:1", "ca_file": str(tmp_path / "keys")}, 400, "cannot be used"),
            ({"pool": "p", "url": "x" * 70_000}, 413, "larger than"),
        ):
            got = await ask(f, secret, "POST", "", body)
            assert got.status == status, (body, got.body)
            assert text in json.loads(got.body)["error"]["message"]
        assert names(f) == ("a",)
        assert json.loads((tmp_path / "changes").read_text()).get("added", {}) == {}
        for method, path in (("DELETE", "/z"), ("POST", "/z/drain"), ("POST", "/z/undrain")):
            assert (await ask(f, secret, method, path)).status == 404
        show(f, "a", Membership(instance="a", change="left"))
        assert (await ask(f, secret, "POST", "/a/undrain")).status == 409


async def test_who_does_not_fit_the_pools_policy_is_refused_as_in_the_list(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD], listed=1, operators=True) as (f, secret):
        settings = f.router.discovery.settings
        pool = settings.pools[0].model_copy(update={"policy": "round-robin"})
        f.router.discovery.settings = settings.model_copy(update={"pools": (pool,)})
        got = await ask(f, secret, "POST", "", {"url": "http://127.0.0.1:1", "weight": 3})
        assert got.status == 400
        assert "policy round-robin knows none" in json.loads(got.body)["error"]["message"]
        assert names(f) == ("a",)


async def test_a_removal_that_cannot_be_kept_drains_nobody(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD], listed=1, operators=True) as (f, secret):
        (tmp_path / "changes").mkdir()
        got = await ask(f, secret, "DELETE", "/a")
        assert (got.status, json.loads(got.body)["error"]["code"]) == (500, "changes_file")
        assert not f.state("a").draining


async def test_without_a_file_for_changes_one_can_still_be_drained(tmp_path: Path) -> None:
    async with following(tmp_path, [GOOD], listed=1, operators=True) as (f, secret):
        own = f.router.discovery.settings.discovery.model_copy(update={"changes_file": None})
        f.router.discovery.settings = f.router.discovery.settings.model_copy(update={"discovery": own})
        got = await ask(f, secret, "DELETE", "/a")
        assert (got.status, json.loads(got.body)["error"]["code"]) == (409, "no_changes_file")
        assert not f.state("a").draining
        assert (await ask(f, secret, "POST", "/a/drain")).status == 200
