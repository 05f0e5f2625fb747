"""Instances from a file: what it says, what is wrong with it and where, and that a broken one changes nothing."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from evenload.discovery.fakes import Heard
from evenload.discovery.watched import FileSource, WatchedFile
from evenload.settings import SettingsError, SourceSettings
from evenload.settings.instance_files import read_changes, read_instances
from tests.router.stage import until

LOOK_S = 0.05
ONE = "instances:\n  - url: http://h:1\n"
TWO = ONE + "  - {id: b, url: http://h:2, weight: 2}\n"


@contextlib.asynccontextmanager
async def following(path: Path) -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(FileSource(SourceSettings(file=path), LOOK_S).run(heard))
    try:
        yield heard
    finally:
        task.cancel()


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(ONE)
    async with following(path) as heard:
        await until(lambda: heard.reports)
        assert heard.reports == [{"h:1": "http://h:1"}]
        path.write_text(TWO)
        await until(lambda: len(heard.reports) == 2)
        assert heard.reports[-1] == {"h:1": "http://h:1", "b": "http://h:2"}
        (tmp_path / "new").write_text(json.dumps({"instances": []}))
        (tmp_path / "new").rename(path)
        await until(lambda: len(heard.reports) == 3)
        assert heard.reports[-1] == {}, "nobody is what it says"
        await asyncio.sleep(5 * LOOK_S)
        assert (len(heard.reports), heard.failures) == (3, [])


async def test_a_link_that_is_swapped_is_a_change(tmp_path: Path) -> None:
    """As Kubernetes does with a mounted ConfigMap."""
    for name, text in (("v1", ONE), ("v2", TWO)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "engines.yaml").write_text(text)
    (tmp_path / "data").symlink_to("v1")
    async with following(tmp_path / "data" / "engines.yaml") as heard:
        await until(lambda: heard.reports)
        (tmp_path / "data.new").symlink_to("v2")
        (tmp_path / "data.new").rename(tmp_path / "data")
        await until(lambda: len(heard.reports) == 2)
        assert len(heard.reports[-1]) == 2


async def test_a_broken_file_is_told_once_with_its_line_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(ONE)
    async with following(path) as heard:
        await until(lambda: heard.reports)
        path.write_text("instances:\n  - url: http://h:1\n  - ulr: http://h:2\n")
        await until(lambda: heard.failures)
        assert f"{path}:3: instances[1].ulr: unknown key; did you mean 'url'?" in heard.failures[0]
        path.write_text("instances: [\n")
        await until(lambda: len(heard.failures) == 2)
        assert "is not valid YAML" in heard.failures[1]
        path.unlink()
        await until(lambda: len(heard.failures) == 3)
        assert "cannot be read" in heard.failures[2]
        await asyncio.sleep(5 * LOOK_S)
        assert (len(heard.failures), len(heard.reports)) == (3, 1)
        path.write_text(TWO)
        await until(lambda: len(heard.reports) == 2)


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "link to a pipe"])
async def test_what_is_no_regular_file_is_told_at_once_and_its_successor_is_read(kind: str, tmp_path: Path) -> None:
    path, pipe = tmp_path / "engines.yaml", tmp_path / "pipe"
    os.mkfifo(pipe)
    match kind:
        case "pipe":
            pipe.rename(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to(pipe)
    async with following(path) as heard:
        await until(lambda: heard.failures)
        assert heard.failures == [f"{path}: cannot be read: is not a regular file"]
        with pytest.raises(SettingsError, match="is not a regular file"):
            read_changes(path)
        (tmp_path / "new").write_text(ONE)
        if kind == "directory":
            path.rmdir()
        (tmp_path / "new").rename(path)
        await until(lambda: heard.reports)


def test_a_file_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(ONE)
    watched = WatchedFile(path)
    assert watched.changed()
    assert not watched.changed()
    path.write_text("instances:\n")
    assert not watched.changed(), "it has just changed"
    path.write_text(TWO)
    assert not watched.changed()
    assert watched.changed(), "now it stands still"
    assert not watched.changed()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "instances: is required"),
        ("instances: 5", "1: instances: must be a list"),
        ("- url: http://h:1", "1: must be a mapping of sections"),
        ("instances:\n- {url: 'http://h:1', weight: -1}", "2: instances[0].weight: must be greater than 0"),
        ("instances:\n- {url: 'http://h:1'}\n- {url: 'http://h:1'}", "3: instances[1]: 'h:1' stands twice"),
        ("instances:\n- {url: 'http://h:1'}\nmore: 1", "3: more: unknown key"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_instances(path, SourceSettings(file=path))
    assert problem in str(caught.value)


def test_the_template_is_filled_in_and_an_instances_own_keys_win(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text("instances:\n- {url: 'http://h:1'}\n- {url: 'http://h:2', kind: sglang}")
    source = SourceSettings(file=path, template={"kind": "vllm", "api_key_env": "KEY"})
    found = read_instances(path, source)
    assert [(one.kind, one.api_key_env) for one in found] == [("vllm", "KEY"), ("sglang", "KEY")]
