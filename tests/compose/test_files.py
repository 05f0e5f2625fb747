"""What can be checked of the stack without a Docker engine."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenload.bus.emitter import Emitter
from evenload.bus.spool_metrics import SpoolMetrics
from evenload.collector.metrics import CollectorMetrics
from evenload.collector.peers import Peers
from evenload.discovery.discovery import Discovery
from evenload.discovery.metrics import DiscoveryMetrics
from evenload.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]
EVENLOAD = ("topics", "scorer", "collector", "router", "audit")
ENGINES = ("engine-1", "engine-2", "engine-3", "engine-4")
STOCK = ("kafka", "proxy", "prometheus")
ONE_SHOT = ("topics", "audit")
EXTRAS = ("router", "scorer", "collector", "lab")
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()


def with_defaults(value: Any) -> Any:
    """Fill in `${NAME:-default}` as compose does when there is no .env."""
    if isinstance(value, dict):
        return {key: with_defaults(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_defaults(inner) for inner in value]
    return VARIABLE.sub(lambda match: match[2], value) if isinstance(value, str) else value


COMPOSE: dict[str, Any] = with_defaults(yaml.safe_load(COMPOSE_TEXT))
SERVICES: dict[str, Any] = COMPOSE["services"]


@pytest.fixture(scope="module")
def settings() -> Settings:
    environ = {name: value for service in EVENLOAD for name, value in SERVICES[service]["environment"].items()}
    assert environ.pop("EVENLOAD_CONFIG") == "/etc/evenload/evenload.yaml"
    return load_settings(ROOT / "deploy/evenload.yaml", environ=environ)


def test_the_stack_is_complete() -> None:
    assert sorted(SERVICES) == sorted((*EVENLOAD, *ENGINES, *STOCK))
    assert (SERVICES["router"]["deploy"]["replicas"], SERVICES["scorer"]["deploy"]["replicas"]) == ("3", "2")


def test_only_engines_and_audit_are_behind_a_profile() -> None:
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {"audit": ["audit"], **{name: ["demo"] for name in ENGINES}}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_has_limits_restarts_and_a_bounded_log(name: str) -> None:
    service = SERVICES[name]
    limits = service["deploy"]["resources"]["limits"]
    assert float(limits["cpus"]) <= 2
    assert limits["memory"][-1] in "MG"
    assert limits["pids"] <= 512
    assert service["logging"]["options"]["max-size"] == "10m"
    if name not in ONE_SHOT:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", sorted((*EVENLOAD, *ENGINES)))
def test_evenloads_containers_can_do_little_and_hear_signals(name: str) -> None:
    service = SERVICES[name]
    assert service["init"] is True
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in service, "the image's user is the one without rights"


def test_what_is_published_is_published_on_this_machine_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_have_versions_and_no_registry() -> None:
    images = {service["image"] for service in SERVICES.values()} | set(re.findall(r"(?m)^FROM (\S+:\S+)", DOCKERFILE))
    for image in images:
        assert re.fullmatch(r"[a-z]+(/[a-z]+)?:[a-z0-9][\w.-]*", image), image
        assert not image.endswith(":latest")


def test_an_image_is_built_for_each_extra_and_from_pins_with_hashes() -> None:
    builds = {(s["image"], s["build"]["args"]["EXTRA"]) for s in SERVICES.values() if "build" in s}
    assert builds == {(f"evenload/{extra}:local", extra) for extra in EXTRAS}
    installs = [line for line in DOCKERFILE.replace("\\\n", " ").splitlines() if "pip install" in line]
    assert len(installs) == 3
    assert all("--require-hashes" in line or "--no-index" in line for line in installs)


def test_the_image_runs_as_nobody_in_particular() -> None:
    final = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
    assert re.search(r"(?m)^USER 10001:10001$", final)
    assert "COPY --from=environment" in final
    assert "pip" not in final


@pytest.mark.parametrize("extra", [*EXTRAS, "bedrock", "kubernetes", "build"])
def test_images_install_the_versions_that_the_tests_ran_with(extra: str) -> None:
    pinned = re.compile(r"(?m)^([a-z0-9._-]+)==([^ ;\\]+)")
    dev = dict(pinned.findall((ROOT / "requirements/dev.txt").read_text()))
    text = (ROOT / f"requirements/{extra}.txt").read_text()
    pins = dict(pinned.findall(text))
    assert pins
    assert {name: version for name, version in pins.items() if dev.get(name) != version} == {}
    assert text.count("--hash=sha256:") >= len(pins)
    assert "://" not in text


def test_the_build_sees_everything_that_the_dockerfile_copies() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", DOCKERFILE)
    sources = {source.replace("${EXTRA}", "*") for line in copies for source in line.split()}
    assert {"requirements/*.txt" if s.startswith("requirements/") else s for s in sources} == allowed
    assert all((ROOT / source).exists() for source in allowed if "*" not in source)


def test_the_settings_in_the_containers_are_valid_and_fit_the_services(settings: Settings) -> None:
    assert settings.kafka.bootstrap == "kafka:9092"
    assert {i.url for pool in settings.pools for i in pool.instances} == {f"http://{name}:8000" for name in ENGINES}
    assert (settings.router.host, settings.scorer.host, settings.collector.host) == ("0.0.0.0",) * 3
    ports = {
        "router": settings.router.port,
        "scorer": settings.scorer.web_port,
        "collector": settings.collector.metrics_port,
    }
    for name, port in ports.items():
        assert SERVICES[name]["healthcheck"]["test"][-2:] == [str(port), "/readyz"]
        assert SERVICES[name]["command"] == [name]


def test_a_container_has_longer_to_stop_than_its_streams_have_to_finish(settings: Settings) -> None:
    router = settings.router
    assert int(SERVICES["router"]["stop_grace_period"].rstrip("s")) > router.announce_s + router.drain_s + 6


def test_prometheus_and_proxy_look_for_the_ports_that_are_listened_on(settings: Settings) -> None:
    jobs = {j["job_name"]: j for j in yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]}
    assert jobs["router"]["dns_sd_configs"][0] | {"refresh_interval": ""} == {
        "names": ["router"],
        "type": "A",
        "port": settings.router.port,
        "refresh_interval": "",
    }
    assert jobs["scorer"]["dns_sd_configs"][0]["port"] == settings.scorer.web_port
    assert jobs["collector"]["static_configs"][0]["targets"] == [f"collector:{settings.collector.metrics_port}"]
    assert jobs["engine"]["dns_sd_configs"][0]["names"] == list(ENGINES)
    proxy = (ROOT / "deploy/haproxy.cfg").read_text()
    assert f"router:{settings.router.port} resolvers docker" in proxy


def test_alerts_are_on_metrics_that_there_are() -> None:
    assert yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["rule_files"] == ["alerts.yml"]
    assert COMPOSE["configs"]["alerts"] == {"file": "./deploy/alerts.yml"}
    rules = [r for g in yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"] for r in g["rules"]]
    asked = {name for rule in rules for name in re.findall(r"evenload_\w+", rule["expr"])}
    assert "evenload_collector_gauge_vanished" in asked
    discovery = Discovery(Settings(), print)
    emitter, peers = Emitter("127.0.0.1:1", "t", "c", partitions=1), Peers("me", ())
    sources = CollectorMetrics(lambda: [], emitter, peers), DiscoveryMetrics(lambda: discovery), SpoolMetrics(emitter)
    families = [family for source in sources for family in source.collect()]
    there = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert asked <= there
    assert all(rule["annotations"].keys() == {"summary", "description"} for rule in rules)


def test_the_proxy_sends_a_request_again_only_if_no_router_has_seen_it() -> None:
    proxy = (ROOT / "deploy/haproxy.cfg").read_text()
    assert re.findall(r"(?m)^\s*retry-on (.+)$", proxy) == ["conn-failure"]
    for line in ("option http-no-delay", "option abortonclose", "http-reuse never"):
        assert re.search(rf"(?m)^\s*{line}$", proxy), line


def test_the_example_of_env_has_all_variables_with_their_defaults() -> None:
    defaults = dict(VARIABLE.findall(COMPOSE_TEXT))
    lines = (ROOT / ".env.example").read_text().splitlines()
    example = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert example.pop("COMPOSE_PROFILES") == "demo"
    assert example == defaults
    assert not any(name.startswith("EVENLOAD_") for name in example), "sourced into a shell, it would be a setting"


@pytest.mark.parametrize("kind", ["configs", "secrets"])
def test_files_that_compose_mounts_exist(kind: str) -> None:
    assert all((ROOT / entry["file"]).is_file() for entry in COMPOSE[kind].values())
