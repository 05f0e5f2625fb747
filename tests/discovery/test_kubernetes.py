"""Instances from EndpointSlices: what they say, and exchanges with an API server, replayed by one of loopback.

These exchanges are written after the API's reference (discovery.k8s.io/v1, "Efficient detection of changes"), for what
a real server does too seldom; what one did is in `test_kubernetes_recorded.py`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from evenload.discovery import kubernetes
from evenload.discovery.fakes import ApiServer, Heard
from evenload.discovery.kubernetes import KubernetesSource
from evenload.discovery.slices import endpoints
from evenload.settings import SourceSettings
from tests.router.stage import until

PATH = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"


def endpoint(pod: str, address: str, uid: str = "u", **conditions: bool | None) -> dict[str, Any]:
    given = {"ready": True, "serving": True, "terminating": False, **conditions}
    target = {"kind": "Pod", "name": pod, "namespace": "llm", "uid": uid}
    return {"addresses": [address], "conditions": given, "targetRef": target, "nodeName": "n1"}


def a_slice(
    name: str, *some: dict[str, Any], version: int = 1, family: str = "IPv4", port: int = 8000
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "llm", "resourceVersion": str(version)},
        "addressType": family,
        "endpoints": list(some) or None,  # an empty slice has null
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}, {"name": "metrics", "port": 9000}],
    }


def a_list(version: int, *slices: dict[str, Any], more: str = "") -> tuple[int, dict[str, Any]]:
    meta = {"resourceVersion": str(version), **({"continue": more} if more else {})}
    return 200, {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": meta, "items": slices}


def an_event(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": item}


def a_status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "x", "code": code}


def found(*slices: dict[str, Any], port: str = "http") -> dict[str, tuple[str, bool]]:
    return {one.name: (f"{one.host}:{one.port}", one.ready) for one in endpoints(slices, port)}


def test_readiness_and_termination_are_read_off_the_conditions() -> None:
    said = found(
        a_slice(
            "s",
            endpoint("ready", "10.0.0.1"),
            endpoint("unknown", "10.0.0.2", ready=None, serving=None, terminating=None),
            endpoint("loading", "10.0.0.3", ready=False, serving=False),
            endpoint("ends", "10.0.0.4", ready=False, serving=True, terminating=True),
            {"addresses": ["10.0.0.5"]},  # neither conditions nor a pod
        )
    )
    assert said == {
        "ready": ("10.0.0.1:8000", True),
        "unknown": ("10.0.0.2:8000", True),
        "loading": ("10.0.0.3:8000", False),
        "10.0.0.5:8000": ("10.0.0.5:8000", True),
    }


def test_a_port_is_wanted_by_name_or_number_and_slices_without_it_have_nobody() -> None:
    one = a_slice("s", endpoint("a", "10.0.0.1"))
    assert found(one, port="metrics") == {"a": ("10.0.0.1:9000", True)}
    assert found(one, port="8000") == {"a": ("10.0.0.1:8000", True)}
    assert found(one, port="grpc") == {}
    assert found({**one, "ports": None}) == {}


def test_a_pod_with_two_families_is_one_instance_and_a_pod_in_two_slices_is_ready_if_one_says_so() -> None:
    v6 = a_slice("v6", endpoint("a", "fd00::1"), endpoint("b", "fd00::2"), family="IPv6")
    v4 = a_slice("v4", endpoint("a", "10.0.0.1"))
    assert found(v4, v6) == {"a": ("10.0.0.1:8000", True), "b": ("[fd00::2]:8000", True)}
    old, new = (
        a_slice(name, endpoint("a", "10.0.0.1", ready=ready)) for name, ready in (("old", False), ("new", True))
    )
    assert found(new, old) == found(old, new) == {"a": ("10.0.0.1:8000", True)}


@contextlib.asynccontextmanager
async def following(
    server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch, listener: Heard | None = None
) -> AsyncIterator[Heard]:
    monkeypatch.setattr(kubernetes, "BACKOFF_S", (0.05, 0.2))
    config = folder / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
                "users": [{"name": "u", "user": {"token": "secret-token"}}],
            }
        )
    )
    source = SourceSettings(kubernetes="llm/vllm:http", kubeconfig=config, template={"kind": "vllm"})
    heard = listener or Heard()
    task = asyncio.create_task(KubernetesSource(source).run(heard))
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_list_then_a_watch_from_its_version_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = a_slice("s1", endpoint("a", "10.0.0.1"))
    watched = [
        an_event("MODIFIED", a_slice("s1", endpoint("a", "10.0.0.1"), endpoint("b", "10.0.0.2"), version=11)),
        an_event("ADDED", a_slice("s2", endpoint("c", "10.0.0.3", ready=False), version=12)),
        an_event("BOOKMARK", {"metadata": {"resourceVersion": "15"}}),
        an_event("DELETED", a_slice("s1", version=16)),
        None,
    ]
    async with (
        ApiServer(a_list(10, first), (200, watched)) as server,
        following(server, tmp_path, monkeypatch) as heard,
    ):
        await until(lambda: len(heard.reports) == 4, 20)
        assert [sorted(report) for report in heard.reports] == [["a"], ["a", "b"], ["a", "b", "c"], ["c"]]
        assert [(one.instance.url, one.ready, one.mark) for one in heard.last] == [("http://10.0.0.3:8000", False, "u")]
        assert heard.last[0].instance.kind == "vllm"
        await until(lambda: len(server.requests) == 3)
        (path, listed, headers), (_, watch, _), (_, again, _) = server.requests
        assert (path, headers["authorization"]) == (PATH, "Bearer secret-token")
        assert listed["labelSelector"] == "kubernetes.io/service-name=vllm"
        assert "watch" not in listed
        assert (watch["watch"].lower(), watch["resourceVersion"]) == ("true", "10")
        assert again["resourceVersion"] == "16", "taken up where it ended"
        assert heard.failures == []


async def test_a_list_in_pages_is_one_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = (
        a_list(5, a_slice("s1", endpoint("a", "10.0.0.1")), more="t"),
        a_list(5, a_slice("s2", endpoint("b", "::2"))),
    )
    async with ApiServer(*pages) as server, following(server, tmp_path, monkeypatch) as heard:
        await until(lambda: heard.reports, 20)
        assert sorted(heard.reports[0]) == ["a", "b"]
        assert server.requests[1][1]["continue"] == "t"


@pytest.mark.parametrize(
    "gone",
    [(410, a_status(410, "too old")), (200, [an_event("ERROR", a_status(410, "too old"))])],
    ids=("status", "event"),
)
async def test_a_version_that_is_too_old_begins_with_a_new_list(
    gone: tuple[int, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (a_slice("s", endpoint(name, "10.0.0.1")) for name in ("a", "b"))
    async with ApiServer(a_list(1, old), gone, a_list(90, new)) as server:
        async with following(server, tmp_path, monkeypatch) as heard:
            await until(lambda: len(heard.reports) == 2, 20)
            await until(lambda: len(server.requests) == 4)
        assert [sorted(report) for report in heard.reports] == [["a"], ["b"]]
        assert server.requests[3][1]["resourceVersion"] == "90"
        assert heard.failures == []


async def test_what_fails_is_told_and_what_was_found_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = a_status(403, 'endpointslices.discovery.k8s.io is forbidden: User "x" cannot list')
    one = a_slice("s", endpoint("a", "10.0.0.1"))
    exchanges = (
        (403, refused),
        a_list(1, one),
        (200, [an_event("ERROR", a_status(500, "etcd"))]),
        (500, "not a status"),
    )
    async with ApiServer(*exchanges) as server, following(server, tmp_path, monkeypatch) as heard:
        await until(lambda: len(heard.failures) == 3, 20)
        assert "403" in heard.failures[0]
        assert "cannot list" in heard.failures[0]
        assert "etcd" in heard.failures[1]
        assert "500" in heard.failures[2]
        assert [sorted(report) for report in heard.reports] == [["a"]]
        server.then(*a_list(7))
        await until(lambda: len(heard.reports) == 2)
        assert heard.reports[-1] == {}, "a service without endpoints is an answer"


async def test_a_slice_with_a_thousand_endpoints_comes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = a_slice(
        "s", *(endpoint(f"pod-{n}", f"10.0.{n // 250}.{n % 250}", uid="u" * 36) for n in range(1000)), version=2
    )
    assert len(json.dumps(many)) > 2 * 65536, "longer than the lines that stream readers take"
    exchanges = a_list(1), (200, [an_event("ADDED", many)])
    async with ApiServer(*exchanges) as server, following(server, tmp_path, monkeypatch) as heard:
        await until(lambda: len(heard.reports) == 2, 20)
        assert len(heard.reports[-1]) == 1000


async def test_an_unreachable_api_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ApiServer() as server:
        pass
    async with following(server, tmp_path, monkeypatch) as heard:
        await until(lambda: heard.failures, 20)
        assert "Cannot connect" in heard.failures[0]
