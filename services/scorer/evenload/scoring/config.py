"""The constants of scoring: one frozen, validated config per pool."""

import functools
import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from evenload.scoring.clock import TICK_MS

Positive = Annotated[float, Meta(gt=0, le=1e9)]
Weight = Annotated[float, Meta(ge=0, le=1)]
Span = Annotated[int, Meta(ge=TICK_MS, le=86_400_000)]


class ScoringConfig(Struct, frozen=True, kw_only=True):
    """How a pool's instances are scored. The defaults are the published formula's.

    Attributes:
        ttft_limit_ms: EWMA of TTFT at which the latency term is 1; a pool of 32k-token prompts needs more than 2 s.
        waiting_limit: waiting requests at which the queue term is 1.
        kv_threshold: KV usage from which the queue term rises, to 1 at a full cache.
        error_gain: the error term is 1 at an error ratio of 1/gain.
        ewma_alpha: weight of a new sample in the published EWMA.
        evidence: what the latency term reads. `published`: the per-sample EWMA of finished first tokens. `censored`:
            the EWMA in time, which also learns from the ages of waiting requests and fades without traffic.
        rise_ms, decay_ms: time constants of the EWMA in time, upwards and downwards.
        sample_ms_min: time that each sample stands for at least; samples of one batch share one log time.
        evidence_expire_ms: after so long without a sample the EWMA in time is unknown.
        fit_samples: weight of samples that the line of predicted TTFT rests on at most; up to `fit_young` it takes any
            for normal, later one above `fit_excess` times the prediction counts less.
        fit_tokens: work at which a sample of that line weighs a quarter.
        slack_ms: added to observed and predicted TTFT before they are compared: a tenth of a second is nothing.
        slow_rise_ms, slow_fall_ms: time constants of the slowness, upwards and downwards.
        slow_span_ms: the most that one slow sample may stand for.
        fail_ratio: the slowness that a failure stands for, from the second in the window on.
        damping_per_s: points per second that a score may rise.
        warmup_score: where a new or restarted instance starts.
        cooling_ms, cooling_step_ms, cooling_ms_max: first cooling, what each further saturation adds, and the most.
        cooling_ms_cap: the longest Retry-After that is believed.
        long_prompt_tokens: prompts from this size avoid a cooling instance.
        aged_ms: events older than this when they were sent change counters only.
        gauges_expire_ms, load_expire_ms: after so long, gauges are unknown and a replica's load is void.
        grave_ms: how long an instance that left is remembered.
    """

    ttft_weight: Weight = 0.35
    error_weight: Weight = 0.40
    queue_weight: Weight = 0.25
    ttft_limit_ms: Positive = 2000.0
    waiting_limit: Positive = 30.0
    kv_threshold: Annotated[float, Meta(ge=0, lt=1)] = 0.80
    error_gain: Positive = 5.0
    ewma_alpha: Annotated[float, Meta(gt=0, le=1)] = 0.2
    evidence: Literal["published", "censored"] = "published"
    rise_ms: Positive = 300.0
    decay_ms: Positive = 10_000.0
    sample_ms_min: Positive = 20.0
    evidence_expire_ms: Span = 60_000
    fit_samples: Positive = 400.0
    fit_young: Positive = 5.0
    fit_tokens: Positive = 4_000.0
    fit_excess: Positive = 1.25
    slack_ms: Positive = 100.0
    slow_rise_ms: Positive = 300.0
    slow_fall_ms: Positive = 2_000.0
    slow_span_ms: Positive = 300.0
    fail_ratio: Annotated[float, Meta(ge=1, le=100)] = 20.0
    damping_per_s: Annotated[float, Meta(ge=1, le=1000)] = 15.0
    warmup_score: Annotated[float, Meta(ge=0, le=100)] = 30.0
    cooling_ms: Span = 3_000
    cooling_step_ms: Annotated[int, Meta(ge=0, le=60_000)] = 1_000
    cooling_ms_max: Span = 5_000
    cooling_ms_cap: Span = 60_000
    long_prompt_tokens: Annotated[int, Meta(ge=1)] = 4_096
    aged_ms: Span = 10_000
    gauges_expire_ms: Span = 10_000
    load_expire_ms: Span = 3_000
    grave_ms: Span = 600_000

    def __post_init__(self) -> None:
        """Refuse values outside the fields' bounds, also when constructed in code, and what no field can express."""
        for field in msgspec.structs.fields(self):
            try:
                value = msgspec.convert(getattr(self, field.name), field.type)
            except msgspec.ValidationError as error:
                raise ValueError(f"{field.name} is {getattr(self, field.name)!r}: {error}") from error
            msgspec.structs.force_setattr(self, field.name, value)  # 30 becomes 30.0: equal configs have one digest
        if self.ttft_weight + self.error_weight + self.queue_weight > 1.0 + 1e-9:
            raise ValueError("ttft_weight + error_weight + queue_weight must be at most 1")
        if not self.cooling_ms <= self.cooling_ms_max <= self.cooling_ms_cap:
            raise ValueError("cooling_ms <= cooling_ms_max <= cooling_ms_cap must hold")


DEFAULT = ScoringConfig()


@functools.lru_cache(maxsize=256)
def digest(config: ScoringConfig) -> str:
    """Return 12 hex digits that differ when any constant differs."""
    return hashlib.sha256(msgspec.json.encode(config)).hexdigest()[:12]
