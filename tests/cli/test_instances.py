"""`evenload instances` against a real router."""

import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from evenload.cli.app import main
from tests.router.stage import GOOD, until
from tests.router.test_discovery import following, names


async def run(*arguments: str) -> int:
    def call() -> int:
        with pytest.raises(SystemExit) as caught:
            main(["instances", *arguments])
        return int(caught.value.code or 0)

    return await asyncio.to_thread(call)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def test_an_operator_lists_adds_drains_and_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return rows

    async with following(tmp_path, [GOOD], [GOOD], listed=1, operators=True) as (f, secret):
        monkeypatch.setenv("EVENLOAD_ADMIN_KEY", secret)
        at = ("--at", f.url, "--json")
        assert await run("add", f.engines["b"].url, "--pool", "p", "--id", "x", "--set", "kind=none", *at) == 0
        assert said() == [{"router": f.url, "instance": "p:x"}]
        assert names(f) == ("a", "p:x")
        assert await run("drain", "a", *at) == 0
        assert said() == [{"router": f.url, "instance": "a", "draining": True}]
        assert await run("list", *at) == 0
        rows = said()
        assert [(row["instance"], row["state"], row["source"]) for row in rows] == [
            ("a", "draining", "list"),
            ("p:x", "member", "changes"),
        ]
        assert await run("undrain", "a", *at) == 0
        assert await run("remove", "p:x", *at) == 0
        capsys.readouterr()
        await until(lambda: names(f) == ("a",))
        monkeypatch.setenv("COLUMNS", "40")
        assert await run("list", "--at", f.url, "--at", f.url) == 0, "a table, of two routers"
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f" {f.url}")]
        assert [[cell.strip() for cell in line.split("│")][:6] for line in lines] == [
            [f.url, "p", "a", f.engines["a"].url, "list", "member"],
            [f.url, "p", "a", f.engines["a"].url, "list", "member"],
        ], "a line each, with everything, for a pipe has no width"


class Terminal(io.StringIO):
    """Where people read."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [80, 120])
async def test_a_list_fits_a_terminal(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(tmp_path, [GOOD], [GOOD], listed=1, operators=True) as (f, secret):
        monkeypatch.setenv("EVENLOAD_ADMIN_KEY", secret)
        url = f.engines["b"].url
        given = ("--pool", "p", "--id", "vllm-7d9f8b6c5-x2x9k", "--set", "kind=vllm")
        assert await run("add", url, *given, "--at", f.url, "--json") == 0
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "dumb")
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        assert await run("list", "--at", f.url) == 0
        rows = [[cell.strip() for cell in line.split("│")] for line in screen.getvalue().splitlines() if "│" in line]
        assert [row[:3] for row in rows] == [
            ["a", "list", "member"],
            ["p:vllm-7d9f8b6c5-x2x9k", "changes", "member, no gauges"],
        ]
        assert max(map(len, screen.getvalue().splitlines())) <= 80


async def test_what_goes_wrong_has_its_exit_code_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with following(tmp_path, [GOOD], listed=1, operators=True) as (f, secret):
        monkeypatch.delenv("EVENLOAD_ADMIN_KEY", raising=False)
        assert await run("list", "--at", f.url) == 2
        assert "EVENLOAD_ADMIN_KEY holds no operator's key" in capsys.readouterr().err
        (tmp_path / "key").write_text(secret + "\n")
        assert await run("drain", "z", "--at", f.url, "--key-file", "key") == 1
        assert "There is no instance 'z' here." in capsys.readouterr().err
        (tmp_path / "key").write_text("ev-wrong")
        assert await run("list", "--at", f.url, "--key-file", "key") == 1
        assert "The API key is not known here" in capsys.readouterr().err
        assert await run("list", "--at", "http://127.0.0.1:1", "--key-file", "key") == 3
        assert await run("list", "--at", f.url.removeprefix("http://"), "--key-file", "key") == 1, "no scheme"
        capsys.readouterr()
        for nonsense in ("http://a..b:80", "http://h o", "ftp://h:1", ""):
            assert await run("list", "--at", nonsense, "--key-file", "key") == 2
            assert f"--at {nonsense}: must be" in capsys.readouterr().err
        assert await run("add", "http://h:1", "--set", "weight", "--at", f.url, "--key-file", "key") == 2
