"""Pools: which instances serve which models, and by which constants they are scored and chosen."""

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from evenload.settings.base import Name, Section
from evenload.settings.providers import Auth, PresetName, checked_headers, checked_query, filled, is_provider

PolicyName = Literal[
    "predictive",
    "health",
    "peak-ewma",
    "health-ramp",
    "peak-ewma-decay",
    "round-robin",
    "random",
    "least-connections",
    "p2c-in-flight",
]
WEIGHED = frozenset({"predictive", "health-ramp", "peak-ewma-decay"})  # policies that know weights
ANY_MODEL = "*"
DEFAULT_PORTS = {"http": 80, "https": 443}
URL_SHAPE = "must be http(s)://host[:port][/prefix]"


def base_url(text: str) -> str:
    """Check and normalise an instance's address.

    Returns:
        The URL without a slash or `/v1` at its end; OpenAI's clients want that, but `/metrics` is not below it. Another
        version at its end, as in `/api/v3`, stays: it takes the place of `/v1`.

    Raises:
        PydanticCustomError: It is not `http(s)://host[:port][/prefix]`.
    """
    try:
        parts = urlsplit(text)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        raise PydanticCustomError("base_url", URL_SHAPE) from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or not port_ok:
        raise PydanticCustomError("base_url", URL_SHAPE)
    if "@" in parts.netloc:
        raise PydanticCustomError("base_url", URL_SHAPE + "; name the variable that holds a key in api_key_env")
    if parts.query or parts.fragment or any(c.isspace() for c in text):
        raise PydanticCustomError("base_url", URL_SHAPE + ", without query, fragment or spaces")
    if not (text.isascii() and text.isprintable()):
        raise PydanticCustomError("base_url", URL_SHAPE + " in ASCII: a path percent-encoded, a host as xn--...")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def page_url(text: str) -> str:
    """Check the address of a page; a path that is not given is `/metrics`.

    Raises:
        PydanticCustomError: It is not `http(s)://host[:port][/path]`.
    """
    checked = base_url(text)
    return text if urlsplit(text).path.strip("/") else checked + "/metrics"


def host_port(url: str) -> str:
    """Derive an instance id from its URL: `http://gpu-1:8000/v1x` is `gpu-1:8000`."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or DEFAULT_PORTS[parts.scheme]}"


class InstanceSettings(Section):
    """One engine, or one provider's endpoint."""

    id: str = Field(
        "",
        pattern=r"^[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]*$",
        max_length=128,
        description="Name in telemetry and decisions; unique in the file. Host and port of the URL if not given.",
    )
    preset: PresetName | None = Field(
        None, description="A provider whose address, path and authentication are known: docs/providers.md."
    )
    url: Annotated[str, AfterValidator(base_url)] = Field(
        max_length=2048,
        description="Base address: `http(s)://host[:port][/prefix]`. A version at its end (`/v1`, `/api/v3`) takes the "
        "place of the `/v1` that clients ask for.",
    )
    kind: Literal["auto", "vllm", "sglang", "trtllm", "triton", "tgi", "llamacpp", "none"] = Field(
        "auto",
        description="Whose metrics are polled; `auto` finds out by what they say (docs/engines.md); `none` for a "
        "provider without gauges, as with a preset.",
    )
    metrics_url: Annotated[str, AfterValidator(page_url)] | None = Field(
        None,
        max_length=2048,
        description="Address of the metrics page if it is not below `url`, for instance Triton's port 8002.",
    )
    auth: Auth = Field(
        "bearer",
        description="How the key is sent: `Authorization: Bearer`, a header of its own, or not at all, but with AWS "
        "credentials as a signature (extra `bedrock`). A preset has its own default.",
    )
    api_key_env: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        max_length=128,
        description="Environment variable that holds the key of this instance. A preset has its own default.",
    )
    api_key_file: Path | None = Field(
        None, description="File that holds the key instead; it is read again when it changes."
    )
    region: str | None = Field(
        None, pattern=r"^[a-z0-9-]+$", max_length=64, description="AWS region, for preset `bedrock` and `sigv4`."
    )
    model_names: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict,
        max_length=1000,
        description="The instance's name of a model (at Azure: deployment) by the name that clients ask for; `*` for "
        "all others.",
    )
    deployments: bool = Field(
        default=False, description="Whether the model is part of the path, as in preset `azure-deployments`."
    )
    query: dict[str, str] = Field(
        default_factory=dict, max_length=100, description="Query of requests to this instance, instead of the client's."
    )
    headers: dict[str, str] = Field(
        default_factory=dict, max_length=100, description="More headers of requests to this instance; no credentials."
    )
    ca_file: Path | None = Field(
        None, description="PEM file of the authorities that are trusted for this instance, instead of the system's."
    )
    weight: float = Field(
        1,
        gt=0,
        le=1000,
        description="Share: it gets the requests of so many instances of weight 1 (docs/providers.md).",
    )
    priority: int = Field(
        0, ge=0, le=100, description="Tier: the lowest serves, the next joins as the pool's `spill_over_ms` says."
    )

    @field_validator("headers")
    @classmethod
    def _headers(cls, value: dict[str, str]) -> dict[str, str]:
        return checked_headers(value)

    @field_validator("query")
    @classmethod
    def _query(cls, value: dict[str, str]) -> dict[str, str]:
        return checked_query(value)

    @model_validator(mode="after")
    def _one_way_to_authenticate(self) -> "InstanceSettings":
        if self.api_key_env is not None and self.api_key_file is not None:
            raise PydanticCustomError("auth", "api_key_env and api_key_file exclude each other")
        if self.auth == "sigv4" and (self.api_key_env or self.api_key_file):
            raise PydanticCustomError("auth", "auth sigv4 signs with AWS credentials; api_key_env and _file do not fit")
        if self.auth == "sigv4" and self.region is None:
            raise PydanticCustomError("auth", "auth sigv4 needs a region, for instance us-west-2")
        return self

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: Any) -> Any:
        """Fill in what the preset says, and the id; a URL that cannot be read is reported by its own validator."""
        if not isinstance(data, dict):
            return data
        data = filled(data)
        if data.get("id"):
            return data
        try:
            return {**data, "id": host_port(base_url(str(data.get("url"))))}
        except PydanticCustomError:
            return {**data, "id": "unknown"}


class ScoringSettings(Section):
    """Constants of the health score of one pool; they mirror `evenload.scoring.ScoringConfig`."""

    ttft_limit_ms: float = Field(2000, gt=0, le=3_600_000, description="TTFT at which the TTFT term is 1.")
    waiting_limit: float = Field(30, gt=0, le=1_000_000, description="Waiting requests at which the queue term is 1.")
    kv_threshold: float = Field(0.80, ge=0, lt=1, description="KV cache use above which the queue term counts it.")
    ewma_alpha: float = Field(0.2, gt=0, le=1, description="Weight of the newest TTFT sample.")
    error_gain: float = Field(5, gt=0, le=1000, description="Error term per error ratio: 5 means 20 % errors give 1.")
    damping_points_per_s: float = Field(15, ge=1, le=1000, description="How fast the published score may rise.")
    warmup_score: float = Field(30, ge=0, le=100, description="Score of a new, restarted or never-seen instance.")
    cooling_ms_min: int = Field(3000, ge=100, le=600_000, description="Shortest cooling after 429 or 503.")
    cooling_ms_max: int = Field(5000, ge=100, le=600_000, description="Longest cooling without Retry-After.")
    cooling_ms_cap: int = Field(60_000, ge=100, le=3_600_000, description="Longest Retry-After that is believed.")
    long_prompt_tokens: int = Field(
        4096, ge=1, le=10_000_000, description="From this size on, prompts avoid an instance whose KV cache is full."
    )
    gauges_expire_ms: int = Field(10_000, ge=500, le=600_000, description="Age at which polled gauges are unknown.")
    load_expire_ms: int = Field(
        3000, ge=1000, le=600_000, description="Age at which a silent replica's load is dropped."
    )
    rise_ms: int = Field(300, ge=100, le=600_000, description="Time constant of a latency that rises.")
    decay_ms: int = Field(10_000, ge=100, le=3_600_000, description="Time constant of a latency that decays.")
    evidence: Literal["published", "censored"] | None = Field(
        None,
        description="`published` learns TTFT from first tokens only, `censored` from the age of waiting requests too. "
        "Null: what the pool's policy needs.",
    )

    @field_validator("cooling_ms_max", "cooling_ms_cap")
    @classmethod
    def _in_order(cls, value: int, info: Any) -> int:
        lower_name = {"cooling_ms_max": "cooling_ms_min", "cooling_ms_cap": "cooling_ms_max"}[info.field_name]
        lower = info.data.get(lower_name)
        if lower is not None and value < lower:
            raise PydanticCustomError(
                "order", "must not be less than {lower_name} ({lower})", {"lower_name": lower_name, "lower": lower}
            )
        return value


class RetrySettings(Section):
    """Retries on another instance while no content has been sent to the client."""

    attempts_max: int = Field(3, ge=1, le=10, description="Attempts in all, the first one included; 1 means no retry.")
    backoff_ms: int = Field(25, ge=0, le=10_000, description="Wait before the second attempt; doubles with each.")
    backoff_ms_max: int = Field(1000, ge=0, le=60_000, description="Longest wait between two attempts.")
    share: float = Field(0.2, ge=0, le=1, description="Retries that the pool may make, as a share of its requests.")
    per_s_min: float = Field(10, ge=0, le=100_000, description="Retries per second that it may make besides.")


class TimeoutSettings(Section):
    """Limits of one attempt. There is no limit for a stream as a whole: long answers are healthy."""

    connect_s: float = Field(2, gt=0, le=60, description="To connect.")
    first_token_s: float = Field(120, gt=0, le=3600, description="Until the first content token.")
    answer_s: float = Field(
        600, gt=0, le=86_400, description="Until the first byte of an answer that is no stream; it is not retried."
    )
    idle_s: float = Field(120, gt=0, le=3600, description="Between two pieces of a stream.")


class AdmissionSettings(Section):
    """How many requests are under way at once in one router, and how many wait for a place."""

    max_concurrent: int | None = Field(
        None, ge=1, le=1_000_000, description="Requests under way at once; null sets no bound."
    )
    queue_max: int = Field(
        256, ge=0, le=1_000_000, description="Requests that wait for a place, first come first served; more get 429."
    )
    queue_deadline_ms: int = Field(1000, ge=1, le=600_000, description="Longest wait for a place; then 429.")


class PoolSettings(Section):
    """Instances that serve the same models and are chosen among by one policy."""

    name: Name = Field(description="Name of the pool; unique in the file.")
    models: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(
        min_length=1,
        max_length=1000,
        description="Model names that the pool serves; `*` takes every name that no other pool has.",
    )
    policy: PolicyName = Field("predictive", description="How an instance is chosen.")
    spill_over_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        description="Predicted TTFT of the best usable instance beyond which the next `priority` joins. Null: only "
        "when no instance is usable.",
    )
    instances: tuple[InstanceSettings, ...] = Field(min_length=1, max_length=10_000, description="The engines.")
    response_model: Literal["upstream", "client"] = Field(
        "upstream", description="Name of the model in answers: as the engine gives it, or as the client asked for it."
    )
    scoring: ScoringSettings = Field(default_factory=ScoringSettings, description="Constants of the health score.")
    retries: RetrySettings = Field(default_factory=RetrySettings, description="Retries on another instance.")
    timeouts: TimeoutSettings = Field(default_factory=TimeoutSettings, description="Limits of one attempt.")
    admission: AdmissionSettings = Field(
        default_factory=AdmissionSettings, description="Requests of the pool at once, in one router."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_policy(cls, data: Any) -> Any:
        """Providers only: their TTFT says nothing of prompts, and `predictive` would learn nothing more."""
        if not isinstance(data, dict) or data.get("policy") is not None:
            return data
        instances = data.get("instances")
        only = isinstance(instances, list | tuple) and len(instances) > 0 and all(map(is_provider, instances))
        return {**data, "policy": "peak-ewma-decay" if only else "predictive"}
