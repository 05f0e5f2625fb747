"""A router process: SIGHUP under load, operators' pages at their own port, and nothing secret in its log."""

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evenload.api.keys import new_key
from evenload.broker import ports
from evenload.cli.local import write_settings
from evenload.router.fake_wire import DONE, END, SSE_HEAD, Stall, chunk, content, finish, role
from evenload.router.fakes import ScriptedUpstream, post
from evenload.router.upstream_errors import ConnectFailed
from evenload.settings import Settings
from tests.e2e import fleet
from tests.router.stage import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PROMPT = "a-prompt-that-nobody-may-log"


def with_engine(settings: Settings, number: int) -> Settings:
    """The pool with one of the engines only."""
    data = settings.model_dump(mode="json")
    data["pools"][0]["instances"] = [data["pools"][0]["instances"][number]]
    return Settings.model_validate(data)


async def work(url: str, key: str, ends: Counter[str]) -> None:
    """Stream one answer after the other."""
    ask = {"model": fleet.MODEL, "stream": True, "max_tokens": 8, "messages": [{"role": "user", "content": PROMPT}]}
    while True:
        got = await post(url, ask, (b"authorization", f"Bearer {key}".encode()))
        whole = got.status == 200 and b"[DONE]" in got.body
        ends[got.headers[b"x-evenload-instance"].decode() if whole else f"failed {got.status}: {got.body!r}"] += 1


async def test_a_router_takes_new_settings_under_load_and_ignores_bad_ones(tmp_path: Path) -> None:
    engines = fleet.engines(2)
    await engines.start()
    keys_file = tmp_path / "keys"
    key, line = new_key("team")
    keys_file.write_text(line)
    lines: list[str] = []
    admin = ports.choose_free("127.0.0.1")
    both = fleet.settings_for(
        engines, "127.0.0.1:1", "nowhere", announce_s=0, admin_listen=f"127.0.0.1:{admin}", keys_file=str(keys_file)
    )
    child = await asyncio.to_thread(fleet.start, "router", "router", with_engine(both, 0), tmp_path, lines)
    file, port = tmp_path / "router.yaml", both.router.port
    url, at_admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}"
    ends: Counter[str] = Counter()
    workers: list[asyncio.Task[None]] = []

    async def metric(name: str) -> float:
        page = (await post(at_admin, b"", path="/metrics", method="GET")).body.decode()
        return next((float(row.rpartition(" ")[2]) for row in page.splitlines() if row.startswith(name)), 0.0)

    async def hang_up(result: str, count: float) -> None:
        child.send(signal.SIGHUP)
        async with asyncio.timeout(20):
            while await metric(f'evenload_router_reloads_total{{result="{result}"}}') != count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    try:
        await fleet.becomes(port, "/readyz", lambda page: page["ready"])
        for path, public, operators in (
            ("/metrics", 404, 200),
            ("/fleet", 404, 200),
            ("/docs", 404, 200),
            ("/openapi.json", 404, 200),
            ("/readyz", 200, 200),
            ("/healthz", 200, 200),
            ("/v1/models", 401, 404),
            ("/v1/chat/completions", 401, 404),
        ):
            statuses = [(await post(door, b"", path=path, method="GET")).status for door in (url, at_admin)]
            assert statuses == [public, operators], path
        assert (await post(at_admin, b"{}", (b"x-api-key", key.encode()))).status == 404

        workers = [asyncio.create_task(work(url, key, ends)) for _ in range(4)]
        await until(lambda: ends["engine-0"] > 10, 20)
        write_settings(with_engine(both, 1), file)
        await hang_up("ok", 1)
        ends.clear()
        await until(lambda: ends["engine-1"] > 10, 20)
        assert ends["engine-0"] <= 4  # those that were under way

        file.write_text(file.read_text().replace("router:", "router:\n  no_such_key: 1"))
        await hang_up("failed", 1)
        keys_file.write_text(line + "\nnonsense")
        write_settings(both, file)
        await hang_up("failed", 2)
        seen = ends["engine-1"]
        await until(lambda: ends["engine-1"] > seen + 5, 20)

        keys_file.write_text(line + "\n" + new_key("other")[1])
        await hang_up("ok", 2)
        await until(lambda: ends["engine-0"] > 4, 20)
        assert not any(worker.done() for worker in workers)
        assert ends.keys() <= {"engine-0", "engine-1"}
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await asyncio.to_thread(child.stop)
        await engines.stop()
    log = "\n".join(lines)
    assert child.returncode == 0
    assert "no_such_key: unknown key" in log
    assert f"{keys_file}:2: router.keys_file" in log
    for secret in (
        PROMPT,
        key,
        line.split(":")[1],
        *(server.url.removeprefix("http://") for server in engines.engines),
    ):
        assert secret not in log


async def test_while_a_router_drains_operators_still_see_it(tmp_path: Path) -> None:
    lines: list[str] = []
    slow: list[Any] = [SSE_HEAD, chunk(role() + content("a")), Stall(2.5), chunk(content("b") + finish() + DONE), END]
    async with ScriptedUpstream(slow) as engine:
        public, admin = ports.choose_free("127.0.0.1"), ports.choose_free("127.0.0.1")
        pool = {"name": "p", "models": ["m"], "instances": [{"url": engine.url, "kind": "none"}]}
        router = {"port": public, "admin_listen": f"127.0.0.1:{admin}", "announce_s": 0}
        settings = {"kafka": {"bootstrap": "127.0.0.1:1"}, "router": router, "pools": [pool]}
        child = await asyncio.to_thread(
            fleet.start, "router", "router", Settings.model_validate(settings), tmp_path, lines
        )
        url, at_admin = f"http://127.0.0.1:{public}", f"http://127.0.0.1:{admin}"
        try:
            await fleet.becomes(public, "/readyz", lambda page: page["ready"])
            stream = asyncio.create_task(post(url, {"model": "m", "stream": True}))
            await until(lambda: engine.requests)
            await asyncio.sleep(0.3)
            child.send(signal.SIGTERM)
            await asyncio.sleep(0.7)  # past `announce_s`: the clients' door is closed
            with pytest.raises(ConnectFailed, match="refused"):
                await post(url, b"", path="/readyz", method="GET")
            for _ in range(2):
                page = await post(at_admin, b"", path="/metrics", method="GET")
                assert (page.status, page.headers[b"connection"]) == (200, b"close")
                assert b'evenload_router_in_flight{instance="' in page.body
            assert not stream.done()
            got = await stream
            assert (got.status, b"[DONE]" in got.body, got.whole) == (200, True, True)
        finally:
            await asyncio.to_thread(child.stop)
    assert child.returncode == 0
