"""The constants: validated, also when made in code, and told apart by their digest."""

import math
from typing import Any

import msgspec
import pytest

from evenload.scoring import DEFAULT, ScoringConfig, digest


@pytest.mark.parametrize(
    "fields",
    [
        {"ewma_alpha": 0.0},
        {"ewma_alpha": 1.1},
        {"ttft_limit_ms": 0.0},
        {"ttft_limit_ms": math.inf},
        {"ttft_weight": math.nan},
        {"ttft_weight": -0.1},
        {"kv_threshold": 1.0},
        {"damping_per_s": 0.0},
        {"warmup_score": 101.0},
        {"cooling_ms": 99},
        {"cooling_ms": 3000.5},
        {"evidence": "guessed"},
        {"load_expire_ms": 0},
    ],
)
def test_a_value_out_of_bounds_is_refused_and_named_in_code_and_on_the_wire(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(ValueError, match=name):
        ScoringConfig(**fields)
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.convert(fields, ScoringConfig)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ttft_weight": 0.5}, "at most 1"),
        ({"cooling_ms": 6000}, "cooling_ms <= cooling_ms_max"),
        ({"cooling_ms_cap": 4000}, "cooling_ms_max <= cooling_ms_cap"),
    ],
)
def test_values_that_contradict_each_other_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScoringConfig(**fields)


def test_the_defaults_are_the_published_ones() -> None:
    weights = (DEFAULT.ttft_weight, DEFAULT.error_weight, DEFAULT.queue_weight)
    assert weights == (0.35, 0.40, 0.25)
    limits = (DEFAULT.ttft_limit_ms, DEFAULT.waiting_limit, DEFAULT.kv_threshold, DEFAULT.error_gain)
    assert limits == (2000.0, 30.0, 0.80, 5.0)
    assert (DEFAULT.ewma_alpha, DEFAULT.damping_per_s, DEFAULT.warmup_score) == (0.2, 15.0, 30.0)
    assert (DEFAULT.cooling_ms, DEFAULT.cooling_ms_max, DEFAULT.long_prompt_tokens) == (3000, 5000, 4096)


def test_each_constant_changes_the_digest() -> None:
    digests = {digest(DEFAULT)}
    for field in msgspec.structs.fields(ScoringConfig):
        value = getattr(DEFAULT, field.name)
        other = "censored" if isinstance(value, str) else value * 0.99 if isinstance(value, float) else value + 1
        if field.name == "cooling_ms_max":
            other = value - 1
        digests.add(digest(msgspec.structs.replace(DEFAULT, **{field.name: other})))
    assert len(digests) == len(msgspec.structs.fields(ScoringConfig)) + 1


def test_equal_configs_have_equal_digests() -> None:
    assert digest(ScoringConfig()) == digest(msgspec.convert({}, ScoringConfig)) == digest(DEFAULT)
    assert digest(ScoringConfig(warmup_score=30, ttft_limit_ms=2000)) == digest(DEFAULT)
    assert isinstance(ScoringConfig(warmup_score=30).warmup_score, float)
    assert len(digest(DEFAULT)) == 12
