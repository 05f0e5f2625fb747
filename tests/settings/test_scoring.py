"""Pools become the scoring configs that everybody folds with."""

import pytest

from evenload.scoring import DEFAULT, digest
from evenload.settings import ScoringSettings, Settings
from evenload.settings.scoring import UNKNOWN, config_of, scoring_configs


def settings(policy: str = "health", **scoring: object) -> Settings:
    instances = [{"id": "a", "url": "http://h:1"}, {"id": "b", "url": "http://h:2"}]
    pool = {"name": "p", "models": ["m"], "policy": policy, "instances": instances, "scoring": scoring}
    return Settings.model_validate({"pools": [pool]})


@pytest.mark.parametrize(("policy", "evidence"), [("health", "published"), ("peak-ewma", "published")])
def test_baseline_policies_learn_as_published(policy: str, evidence: str) -> None:
    assert scoring_configs(settings(policy))["a"].evidence == evidence


@pytest.mark.parametrize("policy", ["predictive", "health-ramp", "peak-ewma-decay", "round-robin"])
def test_all_other_policies_learn_from_waiting_requests_too(policy: str) -> None:
    assert scoring_configs(settings(policy))["b"].evidence == "censored"


def test_the_files_word_on_evidence_counts_more_than_the_policy() -> None:
    assert scoring_configs(settings("health", evidence="censored"))["a"].evidence == "censored"


def test_a_pool_without_constants_of_its_own_has_the_published_ones() -> None:
    assert scoring_configs(settings("health")) == {"a": DEFAULT, "b": DEFAULT}
    assert digest(scoring_configs(settings("health"))["a"]) == digest(DEFAULT)


def test_every_constant_arrives() -> None:
    given = {
        "ttft_limit_ms": 15_000,
        "waiting_limit": 7,
        "kv_threshold": 0.5,
        "ewma_alpha": 0.5,
        "error_gain": 2,
        "damping_points_per_s": 20,
        "warmup_score": 10,
        "cooling_ms_min": 1000,
        "cooling_ms_max": 2000,
        "cooling_ms_cap": 3000,
        "long_prompt_tokens": 99,
        "gauges_expire_ms": 5000,
        "load_expire_ms": 2000,
        "rise_ms": 200,
        "decay_ms": 5000,
    }
    config = scoring_configs(settings("health", **given))["a"]
    renamed = {"damping_points_per_s": "damping_per_s", "cooling_ms_min": "cooling_ms"}
    assert {name: getattr(config, renamed.get(name, name)) for name in given} == given


def test_an_instance_of_no_pool_is_scored_with_the_usable_defaults() -> None:
    of = config_of(settings("health"))
    assert (of("a"), of("stranger")) == (DEFAULT, UNKNOWN)
    assert UNKNOWN.evidence == "censored"


@pytest.mark.parametrize("bound", ["ge", "gt", "le", "lt"])
def test_whatever_the_settings_allow_the_scoring_takes(bound: str) -> None:
    """One place judges constants: at each extreme that a field allows, the conversion works."""
    for name, field in ScoringSettings.model_fields.items():
        for value in (getattr(constraint, bound, None) for constraint in field.metadata):
            if value is not None and not name.startswith("cooling_ms"):
                scoring_configs(settings(**{name: {"gt": value + 1e-6, "lt": value - 1e-6}.get(bound, value)}))
    scoring_configs(settings(cooling_ms_min=100, cooling_ms_max=100, cooling_ms_cap=100))
    scoring_configs(settings(cooling_ms_min=600_000, cooling_ms_max=600_000, cooling_ms_cap=3_600_000))
