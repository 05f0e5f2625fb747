"""All sources together: what they find is part of the settings, and a bad one disturbs none of the others."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from evenload.discovery.changes import adding, change, removing, restoring
from evenload.discovery.discovery import Discovery
from evenload.discovery.fakes import NameServer
from evenload.discovery.source import Found
from evenload.settings import InstanceSettings, Settings, SettingsError, SourceSettings, load_settings
from evenload.settings.instance_files import ChangesFile, read_changes
from evenload.settings.problems import Problem
from evenload.settings.scoring import UNKNOWN, config_of
from tests.router.stage import until


def settings_for(
    tmp_path: Path, *sources: dict[str, Any], listed: tuple[str, ...] = ("http://l:1",), **pool: Any
) -> Settings:
    return Settings.model_validate(
        {
            "discovery": {"look_s": 0.05, "ttl_s_min": 0.05, "changes_file": str(tmp_path / "changes.json")},
            "pools": [
                {
                    "name": "p",
                    "models": ["m"],
                    "instances": [{"url": url} for url in listed],
                    "discovery": list(sources),
                    **pool,
                }
            ],
        }
    )


def write(path: Path, *urls: str, **keys: Any) -> None:
    path.write_text(json.dumps({"instances": [{"url": url, **keys} for url in urls]}))


def ids(settings: Settings) -> list[str]:
    return [one.id for one in settings.pools[0].instances]


class Applied:
    """Takes settings; refuses them when told to."""

    def __init__(self) -> None:
        self.taken: list[Settings] = []
        self.refuses = False

    def __call__(self, settings: Settings) -> None:
        if self.refuses:
            raise SettingsError([Problem("environment KEY", "api_key_env", "is missing")])
        self.taken.append(settings)

    @property
    def ids(self) -> list[str]:
        return ids(self.taken[-1]) if self.taken else []


@contextlib.asynccontextmanager
async def discovering(settings: Settings, **options: Any) -> AsyncIterator[tuple[Discovery, Applied]]:
    applied = Applied()
    discovery = Discovery(settings, applied, **options)
    discovery.start()
    try:
        yield discovery, applied
    finally:
        await discovery.close()


async def test_what_sources_find_stands_behind_the_list_under_the_pools_name(tmp_path: Path) -> None:
    write(tmp_path / "f", "http://b:1", "http://a:1")
    async with NameServer() as server:
        server.records = {("e.internal", "A"): ["10.0.0.1"]}
        sources = {"file": str(tmp_path / "f")}, {"dns": "e.internal:80", "nameservers": [server.address]}
        async with discovering(settings_for(tmp_path, *sources)) as (discovery, applied):
            assert discovery.waiting == [f"pool p: file {tmp_path / 'f'}", "pool p: dns e.internal:80"]
            await until(lambda: len(applied.ids) == 4)
            assert applied.ids == ["l:1", "p:a:1", "p:b:1", "p:10.0.0.1:80"]
            assert discovery.waiting == []
            assert discovery.origins() == {
                "l:1": "list",
                "p:a:1": f"file {tmp_path / 'f'}",
                "p:b:1": f"file {tmp_path / 'f'}",
                "p:10.0.0.1:80": "dns e.internal:80",
            }


async def test_many_changes_in_a_moment_are_one(tmp_path: Path) -> None:
    async with discovering(settings_for(tmp_path, {"file": str(tmp_path / "f")})) as (discovery, applied):
        slot = next(slot for slot in discovery.slots if slot.pool)
        for count in range(50):
            slot.found([Found(InstanceSettings(url=f"http://h:{n + 1}")) for n in range(count)])
        await until(lambda: len(applied.ids) == 50)
        assert len(applied.taken) <= 2


async def test_a_source_that_fails_is_not_waited_for_and_disturbs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path / "good", "http://a:1")
    sources = {"file": str(tmp_path / "bad")}, {"file": str(tmp_path / "good")}
    async with discovering(settings_for(tmp_path, *sources)) as (discovery, applied):
        await until(lambda: "p:a:1" in applied.ids and not discovery.waiting)
        assert f"pool p: file {tmp_path / 'bad'}: {tmp_path / 'bad'}: cannot be read" in caplog.text
        write(tmp_path / "bad", "http://b:1")
        await until(lambda: "p:b:1" in applied.ids)
        assert "works again" in caplog.text


async def test_a_source_that_cannot_even_ask_is_not_waited_for_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_resolver(*_: object) -> None:
        raise RuntimeError("no name servers")

    monkeypatch.setattr("evenload.discovery.discovery._source", no_resolver)
    async with discovering(settings_for(tmp_path, {"dns": "e.internal:80"})) as (discovery, _):
        slot = next(slot for slot in discovery.slots if slot.pool)
        await until(lambda: slot.failing == "RuntimeError: no name servers")
        await until(lambda: not discovery.waiting)


@pytest.mark.parametrize("keys", [{"api_key_env": "NOT_THERE"}, {"ca_file": "/not/there", "url": "https://b:1"}])
async def test_an_instance_whose_key_or_authorities_are_missing_holds_up_its_own_source_only(
    tmp_path: Path, keys: dict[str, str]
) -> None:
    write(tmp_path / "f", "http://a:1")
    write(tmp_path / "g", "http://c:1")
    sources = {"file": str(tmp_path / "f")}, {"file": str(tmp_path / "g")}
    async with discovering(settings_for(tmp_path, *sources)) as (discovery, applied):
        await until(lambda: {"p:a:1", "p:c:1"} <= set(applied.ids))
        (tmp_path / "f").write_text(json.dumps({"instances": [{"url": "http://b:1", **keys}]}))
        await until(lambda: any(slot.failing for slot in discovery.slots))
        write(tmp_path / "g", "http://c:1", "http://d:1")
        await until(lambda: "p:d:1" in applied.ids)
        failing = {slot.label: slot.failing for slot in discovery.slots if slot.failing}
        assert list(failing) == [f"file {tmp_path / 'f'}"]
        assert "NOT_THERE" in str(failing) or "/not/there" in str(failing)
        assert "p:a:1" in applied.ids


async def test_an_instance_that_cannot_be_in_the_pool_is_refused_with_all_of_its_report(tmp_path: Path) -> None:
    write(tmp_path / "f", "http://a:1")
    settings = settings_for(tmp_path, {"file": str(tmp_path / "f")}, policy="round-robin")
    async with discovering(settings) as (discovery, applied):
        await until(lambda: "p:a:1" in applied.ids)
        write(tmp_path / "f", "http://a:1", "http://b:1", weight=3)
        slot = next(slot for slot in discovery.slots if slot.pool)
        await until(lambda: slot.failing)
        assert "policy round-robin knows none" in slot.failing
        assert "p:b:1" not in applied.ids


async def test_instances_that_are_not_ready_are_left_out_by_routers_unless_all_are(tmp_path: Path) -> None:
    async with discovering(settings_for(tmp_path, {"file": str(tmp_path / "f")}), ready_only=True) as (
        discovery,
        applied,
    ):
        slot = next(slot for slot in discovery.slots if slot.pool)
        a, b = (InstanceSettings(url=f"http://{name}:1") for name in "ab")
        slot.found([Found(a, ready=True), Found(b, ready=False)])
        await until(lambda: applied.ids == ["l:1", "p:a:1"])
        slot.found([Found(a, ready=False), Found(b, ready=False)])
        await until(lambda: applied.ids == ["l:1", "p:a:1", "p:b:1"])


async def test_what_cannot_be_applied_is_counted_and_tried_again_with_the_next_change(tmp_path: Path) -> None:
    write(tmp_path / "f", "http://a:1")
    async with discovering(settings_for(tmp_path, {"file": str(tmp_path / "f")})) as (discovery, applied):
        applied.refuses = True
        await until(lambda: discovery.refused == 1)
        assert "api_key_env" in discovery.refusal
        applied.refuses = False
        write(tmp_path / "f", "http://a:1", "http://b:1")
        await until(lambda: applied.ids == ["l:1", "p:a:1", "p:b:1"])
        assert discovery.refusal == ""


async def test_operators_changes_are_followed_by_everybody_who_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "changes.json"
    write(tmp_path / "f", "http://a:1")
    settings = settings_for(tmp_path, {"file": str(tmp_path / "f")})
    async with discovering(settings) as (_, applied):
        await until(lambda: "p:a:1" in applied.ids)
        change(path, adding("p", InstanceSettings(id="p:x", url="http://x:1")))
        await until(lambda: applied.ids == ["l:1", "p:a:1", "p:x"])
        for name in ("p:a:1", "l:1", "p:x"):
            change(path, removing(name))
        await until(lambda: applied.ids == [])
        change(path, restoring("l:1"))
        await until(lambda: applied.ids == ["l:1"])
        path.write_text("{")
        await asyncio.sleep(0.3)
        assert applied.ids == ["l:1"]
    path.unlink()
    change(path, removing("l:1"))
    assert ids(Discovery(settings, print).merged()) == [], "also after a restart"


def test_a_change_leaves_the_rest_of_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "changes.json"
    one, other = (InstanceSettings(id=f"p:{name}", url=f"http://{name}:1", weight=2) for name in "ab")
    change(path, adding("p", one))
    change(path, adding("q", other))
    assert change(path, removing("p:a")) == ChangesFile(added={"q": (other,)}), "what was added is simply gone"
    assert change(path, removing("z")).removed == ("z",)
    assert change(path, removing("z")).removed == ("z",)
    assert read_changes(path).added["q"] == (other,)
    with pytest.raises(SettingsError, match=r"discovery\.changes_file: cannot be written"):
        change(tmp_path / "nowhere" / "changes", removing("z"))


async def test_new_settings_keep_what_unchanged_sources_found(tmp_path: Path) -> None:
    for name in ("f", "g"):
        write(tmp_path / name, f"http://{name}:1")
    f, g = ({"file": str(tmp_path / name)} for name in ("f", "g"))
    async with discovering(settings_for(tmp_path, f)) as (discovery, applied):
        await until(lambda: applied.ids == ["l:1", "p:f:1"])
        task = discovery.slots[0].task
        discovery.reconfigure(settings_for(tmp_path, f, g, listed=("http://l:2",)))
        assert applied.ids == ["l:2", "p:f:1"], "at once, without waiting for a look"
        await until(lambda: applied.ids == ["l:2", "p:f:1", "p:g:1"])
        assert task is not None
        applied.refuses = True
        with pytest.raises(SettingsError):
            discovery.reconfigure(settings_for(tmp_path, g))
        applied.refuses = False
        assert ids(discovery.merged()) == ["l:2", "p:f:1", "p:g:1"]
        discovery.reconfigure(settings_for(tmp_path, g))
        assert applied.ids == ["l:1", "p:g:1"]


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError) as caught:
        Discovery(settings_for(tmp_path, {"kubernetes": "a/b:http"}), print)
    assert caught.value.name == "kubernetes_asyncio"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{}", "needs exactly one of file, dns, srv, kubernetes"),
        ("{file: f, dns: 'a:1'}", "needs exactly one of"),
        ("{dns: a}", "must be `name:port`"),
        ("{dns: 'a:70000'}", "must be `name:port`"),
        ("{srv: a.internal}", "must be a name like"),
        ("{kubernetes: a/b/c}", "must be `[namespace/]service:port`"),
        ("{dns: 'a:1', nameservers: [ns1]}", "must be addresses"),
        ("{dns: 'a:1', template: {url: 'http://a'}}", "template: url is what the source says"),
        ("{dns: 'a:1', template: {knd: vllm}}", "template: knd"),
        ("{fil: a}", "unknown key; did you mean 'file'?"),
    ],
)
def test_a_bad_source_stops_the_start_and_is_named(source: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "evenload.yaml"
    file.write_text(f"pools:\n  - name: p\n    models: [m]\n    discovery:\n      - {source}\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(file, environ={})
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"{file}:5: pools[0].discovery[0]")


def test_a_pool_needs_instances_or_a_source(tmp_path: Path) -> None:
    file = tmp_path / "evenload.yaml"
    file.write_text("pools:\n  - name: p\n    models: [m]\n")
    with pytest.raises(SettingsError, match=r"pools\[0\]\.instances: needs at least one instance, or a source"):
        load_settings(file, environ={})


def test_a_discovered_instance_is_scored_as_its_pool_by_everybody(tmp_path: Path) -> None:
    """The scorer and the auditor know no sources: the pool stands in the id."""
    settings = settings_for(tmp_path, {"dns": "e.internal:80"}, scoring={"ttft_limit_ms": 9000})
    of = config_of(settings)
    assert of("p:10.0.0.1:80").ttft_limit_ms == 9000
    assert of("l:1").ttft_limit_ms == 9000
    assert of("q:10.0.0.1:80") is UNKNOWN


def test_the_label_of_a_source_is_short() -> None:
    assert SourceSettings(kubernetes="llm/vllm:http").label == "kubernetes llm/vllm:http"
