"""The settings of the whole of Evenload: one model, one section per process."""

import re
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from evenload.settings.base import ListenAddress, LogSettings, Name, Port, Section, host_and_port
from evenload.settings.discovery import DiscoverySettings
from evenload.settings.ingest import IngestSettings
from evenload.settings.instances import base_url
from evenload.settings.kafka import KafkaSettings, security_conflicts
from evenload.settings.pools import WEIGHED, AdmissionSettings, PoolSettings
from evenload.settings.problems import Location
from evenload.settings.spool import SpoolSettings

ENV_PREFIX = "EVENLOAD_"
ENV_DELIMITER = "__"


def _default_name(data: Any, port_key: str, port: int) -> Any:
    """Name a process `hostname-port` unless the settings name it."""
    if not isinstance(data, dict) or data.get("name"):
        return data
    given = str(data.get(port_key, port))
    # A bad port or an odd hostname must not show up as a bad name.
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:100].lstrip("._-") or "host"
    return {**data, "name": f"{host}-{given if given.isdecimal() else port}"}


class RouterAdmissionSettings(AdmissionSettings):
    """The same for all pools together."""

    max_concurrent: int | None = Field(
        2048, ge=1, le=1_000_000, description="Requests under way at once; null sets no bound."
    )


class RouterSettings(Section):
    """One router replica."""

    host: str = Field("127.0.0.1", min_length=1, max_length=255, description="Address to listen on.")
    port: Port = Field(8080, description="Port to listen on.")
    admin_listen: ListenAddress | None = Field(
        None,
        max_length=262,
        description="`host:port` of `/metrics`, `/fleet` and `/docs`, apart from the clients' port, which then serves "
        "the API (`/v1`, `/rerank`, `/score`, `/tokenize` and the like) and the probes only. Null serves everything at "
        "one port.",
    )
    name: Name = Field(
        "", description="Name of the replica in telemetry and decisions. Hostname and port if not given."
    )
    max_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1024, le=1024**3, description="Largest request body; a larger one is answered with 413."
    )
    max_held_body_bytes: int = Field(
        512 * 1024 * 1024,
        ge=1024,
        le=1024**4,
        description="Bytes of request bodies that are held at once, while they come and until their requests are over; "
        "a request without room gets 429. Not less than `router.max_body_bytes`.",
    )
    max_header_bytes: int = Field(
        64 * 1024, ge=1024, le=1024**2, description="Largest head of a request, without its URL; else 431."
    )
    max_url_bytes: int = Field(8192, ge=256, le=1024**2, description="Longest URL; else 414.")
    instance_header: bool = Field(
        True,
        description="Whether an instance's answer says in `x-evenload-instance` which one gave it: by its id, which is "
        "host and port of its URL if it has no other. The router's own errors never do.",
    )
    keys_file: Path | None = Field(
        None,
        description="File of client keys (`evenload keys new`), read again at SIGHUP; with it only their requests are "
        "served. Null serves everybody.",
    )
    admin_keys_file: Path | None = Field(
        None,
        description="File of operators' keys, made and read like `keys_file`; with one of them instances are added, "
        "removed and drained at the operators' port. Null: nobody can.",
    )
    prefix_key_file: Path | None = Field(
        None,
        description="File of a secret, 16 bytes or more, the same for all routers: with it they agree which engine "
        "prompts that begin alike go to (`pools[].prefix_affinity`). Null draws one at each start: enough for one "
        "router.",
    )
    admission: RouterAdmissionSettings = Field(
        default_factory=RouterAdmissionSettings, description="Requests of all pools at once."
    )
    server: Literal["native", "uvicorn"] = Field(
        "native",
        description="Who speaks HTTP with clients: Evenload itself, or uvicorn's protocol, which costs more.",
    )
    announce_s: float = Field(
        2,
        ge=0,
        le=300,
        description="After SIGTERM, time in which requests are still taken while `/readyz` already says no: as long as "
        "balancers need to notice. Ctrl-C does without.",
    )
    drain_s: float = Field(30, ge=0, le=3600, description="Time for open streams to finish after that.")
    tracing: Literal["off", "otel"] = Field(
        "off",
        description="`otel` makes OpenTelemetry spans and sends them as the variables `OTEL_*` say; it needs the extra "
        "`otel`. Trace context goes upstream either way.",
    )
    stale_view_ms: int = Field(5000, ge=500, le=600_000, description="Snapshot age beyond which the view says stale.")
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="Seed of the routing draws; null takes one from the system."
    )

    @field_validator("max_held_body_bytes")
    @classmethod
    def _holds_one(cls, value: int, info: Any) -> int:
        largest = info.data.get("max_body_bytes")
        if largest is not None and value < largest:
            raise PydanticCustomError(
                "order",
                "must not be less than router.max_body_bytes ({largest}): no body would fit",
                {"largest": largest},
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _name(cls, data: Any) -> Any:
        return _default_name(data, "port", 8080)

    @property
    def admin_address(self) -> tuple[str, int]:
        """Where operators' pages are: host and port of `admin_listen`, else those of the clients."""
        if self.admin_listen is None:
            return self.host, self.port
        return host_and_port(self.admin_listen)


class ScorerSettings(Section):
    """One Faust worker."""

    app_id: Name = Field("evenload-scorer", description="Consumer group; the workers of one cluster share it.")
    host: str = Field("127.0.0.1", min_length=1, max_length=255, description="Address of `web_port`.")
    web_port: Port = Field(8081, description="Port of `/metrics` and readiness.")
    flush_ms: int = Field(
        25,
        ge=10,
        le=2000,
        description="Least time between two snapshots of an instance; up to four times as long where there are many.",
    )
    heartbeat_ms: int = Field(2000, ge=100, le=60_000, description="Most time between two snapshots of an instance.")
    checkpoint_ms: int = Field(1000, ge=100, le=60_000, description="Least time between two state records.")
    session_timeout_s: int = Field(
        6, ge=1, le=300, description="Time after which a silent worker loses its partitions."
    )
    heartbeat_interval_s: int = Field(1, ge=1, le=100, description="Time between heartbeats to the group.")
    target_records_per_s: int = Field(
        125, ge=10, le=10_000, description="Records per second and partition that the advised linger aims at."
    )


class CollectorSettings(Section):
    """The poller of the engines' gauges, and the linger of every telemetry producer."""

    name: Name = Field("", description="Name of the collector in telemetry. Hostname and metrics port if not given.")
    host: str = Field("127.0.0.1", min_length=1, max_length=255, description="Address of `metrics_port`.")
    metrics_port: Port = Field(8082, description="Port of the collector's own `/metrics` and readiness.")
    poll_ms: int = Field(250, ge=50, le=60_000, description="Time between two polls of an instance.")
    timeout_s: float = Field(1.0, gt=0, le=60, description="Limit of one poll.")
    stall_s: float = Field(
        30,
        ge=1,
        le=3600,
        description="Time without a step, while requests run and nobody gets an answer, after which an engine is not "
        "ready.",
    )
    peers: tuple[Annotated[str, AfterValidator(base_url)], ...] = Field(
        (),
        max_length=100,
        description="Addresses of the `metrics_port` of all collectors, the same list for each; they share the "
        "instances and take over from each other. Empty: it is the only one.",
    )
    advertise: Annotated[str, AfterValidator(base_url)] | None = Field(
        None, max_length=2048, description="Which of `peers` this collector is."
    )
    linger_ms_min: int = Field(20, ge=1, le=10_000, description="Shortest time that events wait for a batch.")
    linger_ms_max: int = Field(500, ge=1, le=10_000, description="Longest time that events wait for a batch.")
    buffer_events_max: int = Field(
        100_000,
        ge=100,
        le=100_000_000,
        description="Events kept in memory while Kafka is away; more are lost, counted.",
    )
    ingest: IngestSettings = Field(
        default_factory=IngestSettings, description="Telemetry of other gateways by HTTP; docs/telemetry.md."
    )

    @model_validator(mode="before")
    @classmethod
    def _name(cls, data: Any) -> Any:
        return _default_name(data, "metrics_port", 8082)


class BrokerSettings(Section):
    """The embedded Kafka of `evenload broker`, `up`, `demo` and the tests."""

    port: int = Field(
        9092, ge=0, le=65535, description="Port on 127.0.0.1; 0 takes a free one and remembers it in the data folder."
    )
    data_dir: Path = Field(Path(".evenload/kafka"), description="Folder of its data; survives restarts.")
    memory_mb: int = Field(256, ge=128, le=65_536, description="Heap of its Java process.")


class DemoSettings(Section):
    """The load of `evenload demo`."""

    trace: Path | None = Field(
        None, description="Arrivals and sizes: Azure LLM (CSV) or Mooncake (JSONL). A synthetic sample if not given."
    )
    rate_rps: float = Field(18.0, gt=0, le=1000, description="Mean requests per second, on each fleet.")
    seed: int = Field(1, ge=0, lt=2**63, description="Seed of everything that is drawn.")
    speed: float | None = Field(
        None, gt=0, le=1000, description="Engine time per wall time. Null fits it to the trace: TTFT about 200 ms."
    )


class Settings(BaseSettings):
    """Everything that can be set. Build it with `load_settings`, or directly in tests: then nothing else is read."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
    )

    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="The Kafka cluster.")
    pools: tuple[PoolSettings, ...] = Field((), max_length=1000, description="What serves which models.")
    discovery: DiscoverySettings = Field(
        default_factory=DiscoverySettings, description="How instances come and go while everything runs."
    )
    router: RouterSettings = Field(default_factory=RouterSettings, description="One router replica.")
    scorer: ScorerSettings = Field(default_factory=ScorerSettings, description="One scorer worker.")
    collector: CollectorSettings = Field(default_factory=CollectorSettings, description="The poller.")
    spool: SpoolSettings = Field(default_factory=SpoolSettings, description="Telemetry on disk while Kafka is away.")
    broker: BrokerSettings = Field(default_factory=BrokerSettings, description="The embedded Kafka.")
    demo: DemoSettings = Field(default_factory=DemoSettings, description="The demo.")
    log: LogSettings = Field(default_factory=LogSettings, description="Logging of every process.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the names are those of pydantic-settings
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is passed in: `load_settings` merges the sources, so that it can say where a bad value stands."""
        return (init_settings,)

    @model_validator(mode="after")
    def _keys_agree(self) -> "Settings":
        problems = list(conflicts(self))
        if problems:
            text = "; ".join(f"{location}: {reason}" for location, reason in problems)
            raise PydanticCustomError("conflicts", "{text}", {"text": text, "problems": problems})
        return self


def conflicts(settings: Settings) -> list[tuple[Location, str]]:
    """Find what each section alone cannot see: names used twice, and bounds in the wrong order."""
    found: list[tuple[Location, str]] = []
    owners: dict[tuple[str, str], str] = {}

    def claim(kind: str, value: str, owner: str, location: Location) -> None:
        if (kind, value) in owners:
            found.append((location, f"{kind} {value!r} is already used by {owners[kind, value]}"))
        owners.setdefault((kind, value), owner)

    for p, pool in enumerate(settings.pools):
        claim("pool name", pool.name, f"pools[{p}]", ("pools", p, "name"))
        for m, model in enumerate(pool.models):
            claim("model", model, f"pool {pool.name!r}", ("pools", p, "models", m))
        for i, instance in enumerate(pool.instances):
            if instance.weight != 1 and pool.policy not in WEIGHED:
                reason = f"policy {pool.policy} knows no weights; {', '.join(sorted(WEIGHED))} do"
                found.append((("pools", p, "instances", i, "weight"), reason))
            claim(
                "instance id", instance.id, f"pool {pool.name!r} ({instance.url})", ("pools", p, "instances", i, "id")
            )
        grows = bool(pool.discovery or settings.discovery.changes_file)
        if not (pool.instances or grows):
            found.append((("pools", p, "instances"), "needs at least one instance, or a source in `discovery`"))
        if (
            pool.spill_over_ms is not None
            and not grows
            and len({instance.priority for instance in pool.instances}) == 1
        ):
            reason = "has no effect: all instances have one priority; give those in reserve a higher `priority`"
            found.append((("pools", p, "spill_over_ms"), reason))
        if pool.retries.backoff_ms > pool.retries.backoff_ms_max:
            found.append((("pools", p, "retries", "backoff_ms_max"), "must not be less than backoff_ms"))
    found += [(("kafka", "security", key), reason) for key, reason in security_conflicts(settings.kafka.security)]
    if settings.router.admin_listen is not None and settings.router.admin_address[1] == settings.router.port:
        found.append((("router", "admin_listen"), "must have another port than router.port"))
    if settings.collector.ingest.listen is not None and settings.collector.ingest.keys_file is None:
        found.append((("collector", "ingest", "keys_file"), "is required with listen: reports move scores"))
    if settings.collector.linger_ms_min > settings.collector.linger_ms_max:
        found.append((("collector", "linger_ms_max"), "must not be less than linger_ms_min"))
    if settings.scorer.flush_ms > settings.scorer.heartbeat_ms:
        found.append((("scorer", "heartbeat_ms"), "must not be less than flush_ms"))
    if settings.scorer.heartbeat_interval_s * 3 > settings.scorer.session_timeout_s:
        found.append((("scorer", "session_timeout_s"), "must be at least three times heartbeat_interval_s"))
    return found
