"""New settings for a router under way: all at once, nothing lost, and nothing changed when they are bad."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from evenload.router.fake_wire import Gate as Held
from evenload.router.fake_wire import response
from evenload.router.fakes import ScriptedUpstream, post
from evenload.router.reload import Reloads, reload
from evenload.settings import Settings, SettingsError
from tests.router.stage import GOOD, GOOD_BODY, PLAIN, STREAM, Fleet, fleet, until

ANSWER = response(200, b'{"choices":[]}')


def changed(f: Fleet, *, router: dict[str, Any] | None = None, **pool: Any) -> Settings:
    """The fleet's settings with some that differ."""
    data = f.settings.model_dump(mode="json")
    data["pools"][0] |= pool
    data["router"] |= router or {}
    return Settings.model_validate(data)


def instances(**urls: str) -> list[dict[str, str]]:
    return [{"id": name, "url": url, "kind": "none"} for name, url in urls.items()]


@contextlib.asynccontextmanager
async def engine(name: str, f: Fleet, *scripts: Any) -> AsyncIterator[str]:
    """One more engine."""
    async with ScriptedUpstream(*scripts) as one:
        f.engines[name] = one
        yield one.url


async def test_an_instance_that_is_added_gets_requests_and_one_that_is_taken_out_gets_none() -> None:
    async with fleet(GOOD) as f, engine("b", f, GOOD) as url:
        await post(f.url, STREAM)
        assert reload(f.router, changed(f, instances=instances(b=url)), {}) == []
        for _ in range(5):
            assert (await post(f.url, STREAM)).body == GOOD_BODY
        assert (f.requests("a"), f.requests("b")) == (1, 5)
        await until(lambda: not f.router.dispatcher._retired)
        samples = await f.metrics()
        assert not any('instance="a"' in sample for sample in samples)
        assert any('instance="b"' in sample for sample in samples)


async def test_requests_under_way_finish_at_an_instance_that_was_taken_out() -> None:
    held = Held(asyncio.Event())
    async with fleet([held, ANSWER]) as f, engine("b", f, [ANSWER]) as url:
        first = asyncio.create_task(post(f.url, PLAIN))
        await until(lambda: f.requests("a") == 1)
        reload(f.router, changed(f, instances=instances(b=url)), {})
        assert (await post(f.url, PLAIN)).headers[b"x-evenload-instance"] == b"b"
        await asyncio.sleep(0.1)
        assert f.router.dispatcher._retired == {"a": "p"}  # it is still accounted for
        held.event.set()
        got = await first
        assert (got.status, got.headers[b"x-evenload-instance"]) == (200, b"a")
        await until(lambda: not f.router.dispatcher._retired)
        assert f.router.dispatcher.view._entries.keys() == {"b"}
        assert "a" not in f.router.dispatcher.book._counts


async def test_an_instance_that_comes_back_while_it_drains_is_the_same_one() -> None:
    held = Held(asyncio.Event())
    async with fleet([held, ANSWER]) as f, engine("b", f, [ANSWER]) as url:
        before = f.settings
        first = asyncio.create_task(post(f.url, PLAIN))
        await until(lambda: f.requests("a") == 1)
        reload(f.router, changed(f, instances=instances(b=url)), {})
        reload(f.router, before, {})
        assert f.view("a").in_flight == 1
        held.event.set()
        assert (await first).status == 200
        await until(lambda: "b" not in f.router.dispatcher.view._entries)
        assert (await post(f.url, PLAIN)).headers[b"x-evenload-instance"] == b"a"


async def test_what_is_unchanged_goes_on_with_its_connections_counts_and_learning() -> None:
    async with fleet(GOOD, admission={"max_concurrent": 5}) as f:
        for _ in range(3):
            await post(f.url, STREAM)
        dispatcher = f.router.dispatcher
        upstream, gate, pool = dispatcher.upstreams["a"], dispatcher.pools["p"].gate, dispatcher.pools["p"]
        assert upstream.idle_connections == 1
        reload(f.router, changed(f, admission={"max_concurrent": 7}, models=["tiny", "other"]), {})
        assert dispatcher.upstreams["a"] is not upstream  # the pool has changed: a client could depend on it
        assert upstream.idle_connections == 0
        upstream = dispatcher.upstreams["a"]
        reload(f.router, changed(f, admission={"max_concurrent": 7}, models=["tiny", "other"]), {})
        assert dispatcher.upstreams["a"] is upstream
        assert dispatcher.pools["p"].gate is gate
        assert gate is not None
        assert gate.bounds.max_concurrent == 7
        assert (dispatcher.pools["p"].ordinal, dispatcher.pools["p"].bytes_per_token) == (3, pool.bytes_per_token)
        assert f.state("a").successes == 3
        assert (await post(f.url, {**STREAM, "model": "other"})).body == GOOD_BODY


async def test_policy_scoring_retries_timeouts_and_sizes_change() -> None:
    async with fleet(GOOD) as f:
        await post(f.url, STREAM)
        after = changed(
            f,
            policy="round-robin",
            scoring={"warmup_score": 80},
            retries={"attempts_max": 1},
            timeouts={"first_token_s": 7},
            router={
                "max_body_bytes": 2000,
                "max_held_body_bytes": 9000,
                "stale_view_ms": 777,
                "admission": {"max_concurrent": None},
            },
        )
        digest = f.router.dispatcher.pools["p"].config_digest
        assert reload(f.router, after, {}) == []
        pool = f.router.dispatcher.pools["p"]
        assert (pool.policy.name, pool.limits.attempts_max, pool.limits.first_token_s) == ("round-robin", 1, 7.0)
        assert pool.config_digest != digest
        assert f.view("a").config.warmup_score == 80
        assert f.router.asgi.gate is None
        assert f.router.asgi.bodies.bytes_max == 9000
        assert (await post(f.url, {**STREAM, "user": "x" * 3000})).status == 413
        assert (await post(f.url, STREAM)).body == GOOD_BODY


async def test_keys_are_read_again_and_their_rates_go_on(tmp_path: Path) -> None:
    def line(name: str, rate: str = "") -> str:
        return f"{name}:{hashlib.sha256(name.encode()).hexdigest()}{rate}\n"

    file = tmp_path / "keys"
    file.write_text(line("old") + line("slow", ":0.001:1"))
    async with fleet(GOOD, router={"keys_file": str(file)}) as f:
        statuses = [(await post(f.url, STREAM, (b"x-api-key", name))).status for name in (b"old", b"new", b"slow")]
        assert statuses == [200, 401, 200]
        file.write_text(line("new") + line("slow", ":0.001:1"))
        reload(f.router, f.settings, {})
        statuses = [(await post(f.url, STREAM, (b"x-api-key", name))).status for name in (b"old", b"new", b"slow")]
        assert statuses == [401, 200, 429]
        reload(f.router, changed(f, router={"keys_file": None}), {})
        assert (await post(f.url, STREAM)).status == 200


@pytest.mark.parametrize("bad", ["key", "file", "pools"])
async def test_bad_settings_change_nothing(bad: str, tmp_path: Path) -> None:
    async with fleet(GOOD) as f, engine("b", f, GOOD) as url:
        after = changed(f, instances=instances(b=url), policy="random")
        if bad == "key":
            after = changed(f, instances=[{"id": "b", "url": url, "api_key_env": "NOT_THERE"}], policy="random")
        elif bad == "file":
            after = changed(f, policy="random", router={"keys_file": str(tmp_path / "none")})
        else:
            after = after.model_copy(update={"pools": ()})
        with pytest.raises(SettingsError):
            reload(f.router, after, {})
        assert f.router.settings is f.settings
        assert f.router.dispatcher.pools["p"].policy.name == "predictive"
        assert (await post(f.url, STREAM)).headers[b"x-evenload-instance"] == b"a"


async def test_what_only_a_restart_can_change_is_named() -> None:
    async with fleet(GOOD) as f:
        data = changed(f, router={"port": 9, "name": "other", "max_body_bytes": 5000}).model_dump(mode="json")
        data["kafka"]["topic_prefix"] = data["log"]["level"] = "warning"
        assert reload(f.router, Settings.model_validate(data), {}) == [
            "kafka.topic_prefix",
            "router.port",
            "router.name",
            "log.level",
        ]


async def test_reloads_are_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async with fleet(GOOD) as f:
        answers: list[Any] = [f.settings, SettingsError([]), ValueError("x")]

        def again() -> Settings:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[no-any-return]

        reloads = Reloads(f.router, again, {})
        task = asyncio.create_task(reloads.run())
        for left, failed in ((2, 0), (1, 1), (0, 1)):
            reloads.request()
            while len(answers) != left:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            assert (await f.metrics())["evenload_router_reload_failed"] == failed
        samples = await f.metrics()
        assert samples['evenload_router_reloads_total{result="ok"}'] == 1
        assert samples['evenload_router_reloads_total{result="failed"}'] == 2
        assert not task.done()
        task.cancel()
        assert "a fault of the router" in caplog.text
        assert (await post(f.url, STREAM)).body == GOOD_BODY
