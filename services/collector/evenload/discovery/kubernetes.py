"""Instances from the EndpointSlices of a Kubernetes service: a list, then a watch from its resourceVersion on.

A watch that ends is taken up where it ended; one whose resourceVersion is too old (410 Gone, as status of the answer or
in an event) begins with a new list. What was found stands meanwhile. The client library does authentication, TLS and
addresses; its own watch is not used, because it refuses lines above 128 KiB, which large slices are, and models that
lack a field.

Needs `get`, `list` and `watch` of `endpointslices` in `discovery.k8s.io` in the service's namespace.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from evenload.discovery.slices import endpoints
from evenload.discovery.source import Found, Listener
from evenload.settings import SourceSettings

WATCH_S = 300  # the server ends a watch after this, and the connection is made anew
SILENT_S = 30  # more than that, and a connection that hangs is given up
LIST_LIMIT = 500
LINE_BYTES_MAX = 64 * 1024 * 1024
BACKOFF_S = (1.0, 30.0)
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
GONE = 410


class KubernetesError(Exception):
    """The API did not give what was asked for."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the Kubernetes API answered {status}: {reason}")
        self.status = status


class KubernetesSource:
    """Follows one service."""

    def __init__(self, source: SourceSettings) -> None:
        assert source.kubernetes is not None
        self._source = source
        service, _, self._port = source.kubernetes.rpartition(":")
        self._namespace, _, self._service = service.rpartition("/")
        self._slices: dict[str, Mapping[str, Any]] = {}

    async def run(self, listener: Listener) -> None:
        """Report after each list and each event."""
        # In a thread, because it takes a second.
        client, config = [
            await asyncio.to_thread(import_module, f"kubernetes_asyncio.{name}") for name in ("client", "config")
        ]
        pause_s = BACKOFF_S[0]
        while True:
            settings = client.Configuration()
            try:
                if self._source.kubeconfig is not None:
                    await config.load_kube_config(str(self._source.kubeconfig), client_configuration=settings)
                else:
                    config.load_incluster_config(client_configuration=settings)
                async with client.ApiClient(settings) as api:
                    async for _ in self._follow(client.DiscoveryV1Api(api), listener):
                        pause_s = BACKOFF_S[0]
            except asyncio.CancelledError:
                raise
            except Exception as error:  # whatever the library, the network or the API comes up with
                if not (isinstance(error, KubernetesError) and error.status == GONE):
                    listener.failed(_reason(error))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, BACKOFF_S[1])

    async def _follow(self, api: Any, listener: Listener) -> AsyncIterator[None]:
        """List and watch until a list is needed again; yields whenever something was heard."""
        version = await self._list(api)
        listener.found(self._found())
        yield
        while True:
            begun_s = asyncio.get_running_loop().time()
            async for kind, item in self._watch(api, version):
                meta = item.get("metadata") or {}
                if kind == "ERROR":
                    if item.get("code") == GONE:
                        return
                    raise KubernetesError(int(item.get("code") or 0), str(item.get("message") or item.get("reason")))
                version = str(meta.get("resourceVersion") or version)
                if kind != "BOOKMARK":
                    self._take(kind, item, meta)
                    listener.found(self._found())
                yield
            # A watch that ends at once, again and again, must not become a busy loop.
            await asyncio.sleep(max(0.0, BACKOFF_S[0] - (asyncio.get_running_loop().time() - begun_s)))

    async def _list(self, api: Any) -> str:
        """Read all slices of the service, in pages; returns the resourceVersion of the list."""
        found: dict[str, Mapping[str, Any]] = {}
        more: dict[str, Any] = {}
        while True:
            answer = await api.list_namespaced_endpoint_slice(
                **self._which(), **more, limit=LIST_LIMIT, _preload_content=False, _request_timeout=SILENT_S
            )
            async with answer:
                page = json.loads(await _body(answer))
            for item in page.get("items") or ():
                found[str(item["metadata"]["name"])] = item
            meta = page.get("metadata") or {}
            if not meta.get("continue"):
                self._slices = found
                return str(meta.get("resourceVersion") or "")
            more = {"_continue": meta["continue"]}

    async def _watch(self, api: Any, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield type and object of each event, until the server ends the watch."""
        answer = await api.list_namespaced_endpoint_slice(
            **self._which(),
            resource_version=version,
            watch=True,
            allow_watch_bookmarks=True,
            timeout_seconds=WATCH_S,
            _preload_content=False,
            _request_timeout=WATCH_S + SILENT_S,
        )
        async with answer:
            if answer.status != 200:
                await _body(answer)
            rest = b""
            async for data in answer.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if line.strip():
                        event = json.loads(line)
                        yield str(event["type"]), event["object"]
                if len(rest) > LINE_BYTES_MAX:
                    raise KubernetesError(answer.status, f"an event of more than {LINE_BYTES_MAX} bytes")

    def _which(self) -> dict[str, str]:
        namespace = self._namespace or _own_namespace()
        return {"namespace": namespace, "label_selector": f"kubernetes.io/service-name={self._service}"}

    def _take(self, kind: str, item: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        if kind == "DELETED":
            self._slices.pop(str(meta["name"]), None)
        else:
            self._slices[str(meta["name"])] = item

    def _found(self) -> list[Found]:
        return [
            Found(
                self._source.instance({"id": one.name, "url": f"{self._source.scheme}://{one.host}:{one.port}"}),
                one.ready,
                one.uid,
            )
            for one in endpoints(self._slices.values(), self._port)
        ]


async def _body(answer: Any) -> bytes:
    """Return the body of an answer.

    Raises:
        KubernetesError: it is an error.
    """
    body: bytes = await answer.read()
    if answer.status == 200:
        return body
    try:
        reason = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        reason = str(answer.reason)
    raise KubernetesError(answer.status, reason[:300])


def _own_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text().strip() or "default"
    except OSError:
        return "default"


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0][:300] if str(error) else ""
    return text if isinstance(error, KubernetesError) else f"{type(error).__name__} {text}".rstrip()
