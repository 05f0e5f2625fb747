"""What a real API server answered, replayed: `recordings/kubernetes.json` is of `record_kubernetes.py`.

It was kube-apiserver and the EndpointSlice controller of the version in the file, with etcd, and pods without kubelets.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from evenload.discovery.fakes import ApiServer
from tests.discovery.record_kubernetes import Members
from tests.discovery.test_kubernetes import following
from tests.router.stage import until

RECORDING: dict[str, Any] = json.loads((Path(__file__).parent / "recordings/kubernetes.json").read_text())
EXCHANGES: list[dict[str, Any]] = RECORDING["exchanges"]


def states() -> list[dict[str, bool]]:
    """Who was told of, and whether ready, without repetitions."""
    told = [{name: bool(ready) for name, (_url, ready, _mark) in report.items()} for report in RECORDING["told"]]
    return [now for before, now in zip([None, *told], told, strict=False) if now != before]


def test_the_recording_has_what_it_was_made_for() -> None:
    statuses = [one["status"] for one in EXCHANGES]
    assert {401, 403, 200} <= set(statuses)
    kinds = {line["type"] for one in EXCHANGES if isinstance(one["body"], list) for line in one["body"] if line}
    assert {"ADDED", "MODIFIED", "BOOKMARK"} <= kinds
    gone = [line for one in EXCHANGES if isinstance(one["body"], list) for line in one["body"] if line]
    assert any(line["type"] == "ERROR" and line["object"]["code"] == 410 for line in gone) or 410 in statuses


def test_pods_were_told_of_as_they_loaded_fell_ill_and_ended() -> None:
    told = states()
    story: list[dict[str, bool]] = [
        {},
        {"vllm-0": False},
        {"vllm-0": True},
        {"vllm-0": True, "vllm-1": True},
        {"vllm-0": True, "vllm-1": False},
        {"vllm-0": True, "vllm-1": True},
        {"vllm-1": True},
        {"vllm-1": True, "vllm-2": True},
    ]
    rest = iter(told)
    assert all(state in rest for state in story), told
    (last,) = RECORDING["told"][-1:]
    assert {name: url for name, (url, _ready, _mark) in last.items()} == {
        "vllm-1": "http://10.1.0.2:8000",
        "vllm-2": "http://10.1.0.3:8000",
    }
    assert len({mark for _url, _ready, mark in last.values()}) == 2


async def test_the_source_asks_and_understands_as_it_did_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members()
    answers = [(one["status"], one["body"]) for one in EXCHANGES]
    async with ApiServer(*answers) as server, following(server, tmp_path, monkeypatch, members):
        await until(lambda: len(members.told) >= len(RECORDING["told"]), 30)
        await asyncio.sleep(0.1)
        assert members.told == RECORDING["told"]
        asked = [(path, query) for path, query, _headers in server.requests]
    for (path, query), one in zip(asked, EXCHANGES, strict=False):
        assert path == one["path"]
        assert query.keys() == one["query"].keys()
        assert query.get("resourceVersion") == one["query"].get("resourceVersion")
    assert len(members.failures) == len(RECORDING["failures"])
    assert [failure.split(":")[0] for failure in members.failures] == [
        failure.split(":")[0] for failure in RECORDING["failures"]
    ]
