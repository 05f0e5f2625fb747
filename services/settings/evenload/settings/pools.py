"""Pools: which instances serve which models, and by which constants they are scored and chosen."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from evenload.settings.base import Name, Section
from evenload.settings.discovery import SourceSettings
from evenload.settings.instances import InstanceSettings
from evenload.settings.providers import is_provider

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
AFFINE = "predictive"  # the policy that knows how prompts begin
WEIGHED = frozenset({"predictive", "health-ramp", "peak-ewma-decay"})  # policies that know weights
ANY_MODEL = "*"


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
        description="Expected TTFT of the best usable instance beyond which the next `priority` joins. Null: only "
        "when none is usable or can be expected to answer (docs/providers.md).",
    )
    instances: tuple[InstanceSettings, ...] = Field(
        (), max_length=10_000, description="The engines; at least one, unless they are discovered."
    )
    discovery: tuple[SourceSettings, ...] = Field(
        (), max_length=100, description="Sources of further instances (docs/discovery.md)."
    )
    response_model: Literal["upstream", "client"] = Field(
        "upstream", description="Name of the model in answers: as the engine gives it, or as the client asked for it."
    )
    prefix_affinity: bool | None = Field(
        None,
        description="Whether prompts that begin alike go to one engine while it is not busy, if such prompts come back "
        "(docs/policies.md). Null: with policy `predictive`, as soon as an engine says that it finds prompts in its "
        "prefix cache.",
    )
    scoring: ScoringSettings = Field(default_factory=ScoringSettings, description="Constants of the health score.")
    retries: RetrySettings = Field(default_factory=RetrySettings, description="Retries on another instance.")
    timeouts: TimeoutSettings = Field(default_factory=TimeoutSettings, description="Limits of one attempt.")
    admission: AdmissionSettings = Field(
        default_factory=AdmissionSettings, description="Requests of the pool at once, in one router."
    )

    @field_validator("prefix_affinity")
    @classmethod
    def _has_an_effect(cls, value: bool | None, info: Any) -> bool | None:
        policy = info.data.get("policy", AFFINE)
        if value and policy != AFFINE:
            raise PydanticCustomError(
                "no_effect",
                "has no effect: policy {policy} does not know how prompts begin; {affine} does",
                {"policy": policy, "affine": AFFINE},
            )
        return value

    @property
    def affine(self) -> bool:
        """Whether the beginnings of prompts count."""
        return self.policy == AFFINE and self.prefix_affinity is not False

    @model_validator(mode="before")
    @classmethod
    def _default_policy(cls, data: Any) -> Any:
        """Providers only: their TTFT says nothing of prompts, and `predictive` would learn nothing more."""
        if not isinstance(data, dict) or data.get("policy") is not None:
            return data
        instances = data.get("instances")
        only = isinstance(instances, list | tuple) and len(instances) > 0 and all(map(is_provider, instances))
        return {**data, "policy": "peak-ewma-decay" if only else "predictive"}
