"""AWS credentials: found once, fetched again beside the event loop, and never signed with when they have ended."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from evenload.router.aws_credentials import REFRESH_EVERY_S, RETRY_S, TRUSTED_S, AwsCredentials, Unavailable, found
from evenload.router.build import build
from evenload.router.reload import Reloads
from evenload.router.upstreams import Means, upstreams
from evenload.settings import Settings, SettingsError
from tests.router.test_sigv4 import aws, settings_for  # noqa: F401 - the fixture is for all tests here


class Role:
    """Credentials as of a role: each fetch gives the next ones, where one is allowed."""

    def __init__(self) -> None:
        self.fetched = 0
        self.fails = False
        self.allowed = threading.Event()
        self.allowed.set()

    def get_frozen_credentials(self) -> str:
        assert self.allowed.wait(10)
        if self.fails:
            raise OSError("no route")
        self.fetched += 1
        return f"number {self.fetched}"


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock tests move."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def run(story: Callable[[Loop, Role, AwsCredentials], Coroutine[Any, Any, None]]) -> None:
    role = Role()
    credentials = AwsCredentials(lambda: role)
    credentials.load()
    loop = Loop()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(story(loop, role, credentials))


async def settled(credentials: AwsCredentials) -> None:
    while credentials._refreshing is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_new_ones_are_fetched_in_a_thread_while_requests_go_on_with_the_last() -> None:
    async def story(loop: Loop, role: Role, credentials: AwsCredentials) -> None:
        first = await credentials.current()
        loop.ahead_s += REFRESH_EVERY_S + 1
        role.allowed.clear()
        assert [await credentials.current() for _ in range(3)] == [first] * 3, "nobody waits"
        role.allowed.set()
        await settled(credentials)
        assert await credentials.current() == f"number {role.fetched}" != first
        assert role.fetched == 3, "at load, at the first use, and one for all"

    run(story)


def test_after_a_night_without_requests_the_first_waits_for_new_ones_and_the_loop_does_not() -> None:
    async def story(loop: Loop, role: Role, credentials: AwsCredentials) -> None:
        first = await credentials.current()
        loop.ahead_s += TRUSTED_S + 1
        role.allowed.clear()
        asked = [asyncio.ensure_future(credentials.current()) for _ in range(3)]
        await asyncio.sleep(0.05)  # the loop runs
        assert not any(one.done() for one in asked)
        asked.pop().cancel()  # a client that leaves takes nothing from the others
        await asyncio.sleep(0)
        role.allowed.set()
        assert await asyncio.gather(*asked) == [f"number {role.fetched}"] * 2
        assert await credentials.current() != first

    run(story)


def test_the_last_ones_stay_while_none_can_be_had_and_it_is_tried_again_soon(caplog: pytest.LogCaptureFixture) -> None:
    async def story(loop: Loop, role: Role, credentials: AwsCredentials) -> None:
        first = await credentials.current()
        loop.ahead_s += TRUSTED_S + 1
        role.fails = True
        assert await credentials.current() == first
        assert await credentials.current() == first, "not asked for each request"
        assert caplog.text.count("could not be fetched again (OSError)") == 1
        role.fails = False
        loop.ahead_s += RETRY_S + 1
        assert await credentials.current() == f"number {role.fetched}" != first

    run(story)


def test_what_botocore_cannot_fetch_stops_the_start_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(Unavailable, match=r"cannot get AWS credentials: .*nobody"):
        found()
    with pytest.raises(SettingsError, match="cannot get AWS credentials"):
        upstreams(settings_for("http://h"), {})


def test_one_set_serves_all_instances() -> None:
    finds: list[Role] = []

    def find() -> Role:
        finds.append(Role())
        return finds[-1]

    means = Means(AwsCredentials(find))
    for settings in (settings_for("http://h:1", "http://h:2"), settings_for("http://h:3")):
        means.prepare(settings)
        upstreams(settings, {}, means=means)
    assert len(finds) == 1


async def test_a_reload_looks_for_them_in_a_thread_and_says_when_there_are_none() -> None:
    may_end, threads = threading.Event(), []

    def find() -> Any:
        threads.append(threading.current_thread())
        assert may_end.wait(10)
        raise Unavailable("none today")

    signing = settings_for("http://127.0.0.1:1")
    plain = signing.model_dump(mode="json")
    plain["pools"][0]["instances"] = [{"id": "e", "url": "http://127.0.0.1:2", "kind": "none"}]
    router = build(Settings.model_validate(plain), {})
    router.means = Means(AwsCredentials(find))
    reloads = Reloads(router, lambda: signing, {})
    reloading = asyncio.create_task(reloads.run())
    reloads.request()
    while not threads:  # noqa: ASYNC110 - and meanwhile the loop runs
        await asyncio.sleep(0.002)
    may_end.set()
    async with asyncio.timeout(10):
        while router.metrics.registry.get_sample_value("evenload_router_reload_failed") != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    reloading.cancel()
    assert threads
    assert threading.main_thread() not in threads
    assert len(threads) == 1, "what is known to fail is not looked for again in the loop"
    assert router.dispatcher.upstreams.keys() == {"e"}


async def test_a_reload_makes_tls_contexts_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    import ssl

    made: list[threading.Thread] = []
    original = ssl.create_default_context

    def noted(**given: Any) -> ssl.SSLContext:
        made.append(threading.current_thread())
        return original(**given)

    data = settings_for("https://127.0.0.1:1", auth="bearer").model_dump(mode="json")
    router = build(Settings.model_validate(data), {"AWS_BEARER_TOKEN_BEDROCK": "k"})
    monkeypatch.setattr(ssl, "create_default_context", noted)
    data["pools"][0]["admission"] = {"max_concurrent": 7}
    reloads = Reloads(router, lambda: Settings.model_validate(data), {"AWS_BEARER_TOKEN_BEDROCK": "k"})
    reloading = asyncio.create_task(reloads.run())
    reloads.request()
    before = router.dispatcher.upstreams["b0"]
    async with asyncio.timeout(10):
        while router.dispatcher.upstreams["b0"] is before:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    reloading.cancel()
    assert made
    assert threading.main_thread() not in made
