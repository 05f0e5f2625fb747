"""Record what a real API server answers to discovery, for `test_kubernetes_recorded.py` to replay.

    python -m tests.discovery.record_kubernetes --kubeconfig ADMIN --restart 'COMMAND' --out recordings/kubernetes.json

The cluster may be any with the EndpointSlice controller, also without a kubelet: pods and their node are objects only,
whose status is written here. It is given a namespace `llm` and a service account with the role of docs/discovery.md.
`--restart` is run by the shell and must restart the API server, so that it has forgotten old versions and answers 410
Gone. What passes between `KubernetesSource` and the server is kept by a proxy between them, without tokens.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import ClientSession, TCPConnector, web
from kubernetes_asyncio import client, config

from evenload.discovery import kubernetes
from evenload.discovery.fakes import Heard
from evenload.discovery.kubernetes import KubernetesSource
from evenload.discovery.source import Found
from evenload.settings import SourceSettings

NAMESPACE, SERVICE, ACCOUNT, NODE = "llm", "vllm", "evenload", "node-1"
RULES = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}]


class Recorder:
    """A proxy to the API server.

    Attributes:
        exchanges: as `ApiServer` of `evenload.discovery.fakes` takes them, each with its request.
        gate: requests wait while it is not set.
        waiting: so many.
    """

    def __init__(self, server: str) -> None:
        self.exchanges: list[dict[str, Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self._server = server

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on, and keep what comes back as it comes."""
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        headers = {name: value for name, value in request.headers.items() if name in ("Authorization", "Accept")}
        async with (
            ClientSession(connector=TCPConnector(ssl=False), auto_decompress=True) as session,
            session.get(f"{self._server}{request.path_qs}", headers=headers) as upstream,
        ):
            kept: dict[str, Any] = {"path": request.path, "query": dict(request.query), "status": upstream.status}
            self.exchanges.append(kept)
            if "watch" not in request.query or upstream.status != 200:
                kept["body"] = json.loads(await upstream.read())
                return web.json_response(kept["body"], status=upstream.status)
            response = web.StreamResponse(headers={"content-type": "application/json"})
            await response.prepare(request)
            kept["body"] = []
            async for line in upstream.content:
                kept["body"].append(json.loads(line))
                await response.write(line)
            kept["body"].append(None)
            return response


@asynccontextmanager
async def recording(server: str) -> AsyncIterator[tuple[Recorder, str]]:
    """Serve a recorder on loopback; yields it and its URL."""
    recorder = Recorder(server)
    app = web.Application()
    app.router.add_get("/{path:.*}", recorder.answer)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield recorder, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Members(Heard):
    """A listener that keeps who was told.

    Attributes:
        told: per report, by id: URL, whether ready, and what tells a pod from its successor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.told: list[dict[str, list[Any]]] = []

    def found(self, instances: Sequence[Found]) -> None:
        """Keep a report."""
        super().found(instances)
        self.told.append({one.instance.id: [one.instance.url, one.ready, one.mark] for one in instances})


class Story:
    """What happens in the cluster, and what the source makes of it."""

    def __init__(self, admin: client.ApiClient, heard: Heard) -> None:
        self.core, self.rights = client.CoreV1Api(admin), client.RbacAuthorizationV1Api(admin)
        self.heard = heard

    async def until(self, true: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
        """Wait.

        Raises:
            TimeoutError: it does not come true; what was heard is in the message.
        """
        for _ in range(int(within_s / 0.05)):
            if true():
                return
            await asyncio.sleep(0.05)
        raise TimeoutError(f"{what}: heard {self.heard.reports}, {self.heard.failures}")

    def ready(self) -> dict[str, bool]:
        """Return who is there, and whether it is ready, as last heard."""
        return {one.instance.id: one.ready for one in self.heard.last}

    async def prepare(self) -> str:
        """Make the namespace, a node and the account; returns its token. It has no rights yet."""
        await self.core.create_namespace({"metadata": {"name": NAMESPACE}})
        await self.core.create_node({"metadata": {"name": NODE}})
        await self.core.create_namespaced_service_account(NAMESPACE, {"metadata": {"name": ACCOUNT}})
        token = await self.core.create_namespaced_service_account_token(ACCOUNT, NAMESPACE, {"spec": {}})
        return str(token.status.token)

    async def allow(self) -> None:
        """Give the account the rights that docs/discovery.md asks for."""
        await self.rights.create_namespaced_role(NAMESPACE, {"metadata": {"name": ACCOUNT}, "rules": RULES})
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT}
        binding = {"metadata": {"name": ACCOUNT}, "roleRef": role, "subjects": [subject]}
        await self.rights.create_namespaced_role_binding(NAMESPACE, binding)

    async def serve(self) -> None:
        """Make the service."""
        spec = {"selector": {"app": SERVICE}, "ports": [{"name": "http", "port": 8000, "targetPort": 8000}]}
        await self.core.create_namespaced_service(NAMESPACE, {"metadata": {"name": SERVICE}, "spec": spec})

    async def pod(self, name: str, address: str) -> None:
        """Make a pod that has an address and is not ready."""
        spec = {
            "nodeName": NODE,
            "terminationGracePeriodSeconds": 300,
            "containers": [{"name": "engine", "image": "engine"}],
        }
        await self.core.create_namespaced_pod(
            NAMESPACE, {"metadata": {"name": name, "labels": {"app": SERVICE}}, "spec": spec}
        )
        await self.say(name, ready=False, address=address)

    async def say(self, name: str, *, ready: bool, address: str) -> None:
        """Write a pod's status, as its kubelet would."""
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        await self.core.patch_namespaced_pod_status(name, NAMESPACE, {"status": status})

    async def delete(self, name: str, grace_s: int) -> None:
        """Ask a pod to end; with 0 it is gone at once."""
        await self.core.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=grace_s)

    async def await_slice(self, name: str) -> None:
        """Wait until the controller has written a pod into a slice."""
        slices = client.DiscoveryV1Api(self.core.api_client)
        while True:
            found = await slices.list_namespaced_endpoint_slice(NAMESPACE)
            pods = {one.target_ref.name for item in found.items for one in item.endpoints or () if one.conditions.ready}
            if name in pods:
                return
            await asyncio.sleep(0.2)

    async def scale(self) -> None:
        """The story itself: load, ready, ill, healed, ending, gone."""
        until = self.until
        await until(lambda: self.heard.reports[-1:] == [{}], "nobody yet")
        await self.serve()
        await self.pod("vllm-0", "10.1.0.1")
        await until(lambda: self.ready() == {"vllm-0": False}, "loading")
        await self.say("vllm-0", ready=True, address="10.1.0.1")
        await until(lambda: self.ready() == {"vllm-0": True}, "ready")
        await self.pod("vllm-1", "10.1.0.2")
        await self.say("vllm-1", ready=True, address="10.1.0.2")
        await until(lambda: self.ready() == {"vllm-0": True, "vllm-1": True}, "two")
        await self.say("vllm-1", ready=False, address="10.1.0.2")
        await until(lambda: self.ready() == {"vllm-0": True, "vllm-1": False}, "ill")
        await self.say("vllm-1", ready=True, address="10.1.0.2")
        await until(lambda: self.ready() == {"vllm-0": True, "vllm-1": True}, "healed")
        await self.delete("vllm-0", grace_s=300)
        await until(lambda: self.ready() == {"vllm-1": True}, "ending")
        await self.delete("vllm-0", grace_s=0)


async def record(kubeconfig: Path, restart: str) -> dict[str, Any]:
    """Run the story; returns what is to be kept."""
    kubernetes.BACKOFF_S, kubernetes.WATCH_S = (0.2, 2.0), 20
    settings = client.Configuration()
    await config.load_kube_config(str(kubeconfig), client_configuration=settings)
    heard = Members()
    async with client.ApiClient(settings) as admin, recording(settings.host) as (recorder, url):
        version = await client.VersionApi(admin).get_code()
        story = Story(admin, heard)
        token = await story.prepare()
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / "kubeconfig"
            own.write_text(yaml.safe_dump(_kubeconfig(url, "not-a-token")))
            source = SourceSettings(kubernetes=f"{NAMESPACE}/{SERVICE}:http", kubeconfig=own, template={"kind": "vllm"})
            task = asyncio.create_task(KubernetesSource(source).run(heard))
            try:
                await story.until(lambda: any("401" in one for one in heard.failures), "401")
                own.write_text(yaml.safe_dump(_kubeconfig(url, token)))
                await story.until(lambda: any("403" in one for one in heard.failures), "403")
                await story.allow()
                await story.scale()
                watches = len(recorder.exchanges)
                await story.until(lambda: len(recorder.exchanges) > watches, "a watch ends and is taken up")
                recorder.gate.clear()  # the next one comes late, when its version has been forgotten
                await story.until(lambda: recorder.waiting > 0, "a watch ends")
                process = await asyncio.create_subprocess_shell(restart)
                if await process.wait():
                    raise RuntimeError(f"--restart: exit code {process.returncode}")
                await story.pod("vllm-2", "10.1.0.3")
                await story.say("vllm-2", ready=True, address="10.1.0.3")
                await story.await_slice("vllm-2")
                recorder.gate.set()
                await story.until(lambda: story.ready() == {"vllm-1": True, "vllm-2": True}, "after the restart", 120.0)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
    return {
        "server": version.git_version,
        "exchanges": recorder.exchanges,
        "told": heard.told,
        "failures": heard.failures,
    }


def _kubeconfig(server: str, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="of an administrator")
    parser.add_argument("--restart", required=True, help="restarts the API server")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    kept = asyncio.run(record(given.kubeconfig, given.restart))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(f"{given.out}: {len(kept['exchanges'])} exchanges with {kept['server']}")


if __name__ == "__main__":
    main()
