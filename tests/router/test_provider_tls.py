"""TLS to instances: who is not vouched for, or is somebody else, gets nothing, and it is a connect_error."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from evenload.router.fake_wire import answer
from evenload.router.fakes import Got, post
from evenload.router.upstreams import upstreams
from evenload.settings import Settings, SettingsError
from tests.authority import Authority
from tests.router.stage import STREAM, replica


@contextlib.asynccontextmanager
async def tls_server(context: ssl.SSLContext) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Answer requests over TLS; yields the port and what arrived."""
    arrived: list[bytes] = []
    whole = b"".join(step for step in answer("Hi") if isinstance(step, bytes))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                arrived.append(head + await reader.readexactly(size))
                writer.write(whole)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1], arrived
    await asyncio.sleep(0.05)  # let the loop close what was refused


def settings_for(url: str, ca_file: Path | None) -> Settings:
    instance: dict[str, Any] = {"id": "far", "preset": "openai", "url": url, "ca_file": ca_file and str(ca_file)}
    return Settings.model_validate(
        {
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "router": {"seed": 1},
            "collector": {"buffer_events_max": 1000},
            "pools": [{"name": "p", "models": ["tiny"], "instances": [instance], "retries": {"attempts_max": 1}}],
        }
    )


async def ask(url: str, ca_file: Path | None) -> tuple[Got, dict[str, int]]:
    settings = settings_for(url, ca_file)
    async with replica(settings, {}, {"OPENAI_API_KEY": "sk-secret"}) as f:
        got = await post(f.url, STREAM)
        return got, dict(await f.outcomes("far"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_server_that_the_given_authority_vouches_for_is_served(tmp_path: Path, host: str) -> None:
    authority = Authority(tmp_path)
    async with tls_server(authority.server_context(host)) as (port, arrived):
        got, outcomes = await ask(f"https://{host}:{port}/v1", authority.file)
    assert (got.status, outcomes) == (200, {"ok": 1})
    assert arrived[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"authorization: Bearer sk-secret" in arrived[0]


@pytest.mark.parametrize("trusted", ["the system's", "another"])
async def test_a_server_of_an_unknown_authority_gets_nothing(tmp_path: Path, trusted: str) -> None:
    authority = Authority(tmp_path)
    other = Authority(tmp_path, "other").file if trusted == "another" else None
    async with tls_server(authority.server_context("127.0.0.1")) as (port, arrived):
        got, outcomes = await ask(f"https://127.0.0.1:{port}/v1", other)
    assert (got.status, got.error["code"], outcomes) == (502, "upstream_tls", {"connect_error": 1})
    assert arrived == []


@pytest.mark.parametrize(("certified", "asked"), [("other.example", "localhost"), ("localhost", "127.0.0.1")])
async def test_a_server_with_somebody_elses_name_gets_nothing(tmp_path: Path, certified: str, asked: str) -> None:
    authority = Authority(tmp_path)
    async with tls_server(authority.server_context(certified)) as (port, arrived):
        got, outcomes = await ask(f"https://{asked}:{port}/v1", authority.file)
    assert (got.status, got.error["code"], outcomes) == (502, "upstream_tls", {"connect_error": 1})
    assert arrived == []


async def test_the_name_goes_out_with_the_handshake(tmp_path: Path) -> None:
    authority, names = Authority(tmp_path), list[str | None]()
    context = authority.server_context("localhost")
    context.sni_callback = lambda _, name, __: names.append(name)
    async with tls_server(context) as (port, _):
        await ask(f"https://localhost:{port}/v1", authority.file)
    assert names == ["localhost"]


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_of_authorities_that_cannot_be_used_stops_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "authorities.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError) as caught:
        upstreams(settings_for("https://h", file), {"OPENAI_API_KEY": "k"})
    (problem,) = caught.value.problems
    assert problem.source == f"file {file}"
    assert problem.key == "pools[0].instances[0].ca_file"
    assert "instance 'far'" in problem.reason
