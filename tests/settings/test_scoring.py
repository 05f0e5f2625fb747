"""Pools become the scoring configs that everybody folds with."""

import pytest

from evenload.scoring import DEFAULT, digest
from evenload.settings import Settings, SettingsError
from evenload.settings.scoring import UNKNOWN, config_of, scoring_configs


def settings(policy: str = "health", **scoring: object) -> Settings:
    instances = [{"id": "a", "url": "http://h:1"}, {"id": "b", "url": "http://h:2"}]
    pool = {"name": "p", "models": ["m"], "policy": policy, "instances": instances, "scoring": scoring}
    return Settings.model_validate({"pools": [pool]})


@pytest.mark.parametrize(("policy", "evidence"), [("health", "published"), ("peak-ewma", "published")])
def test_baseline_policies_learn_as_published(policy: str, evidence: str) -> None:
    assert scoring_configs(settings(policy))["a"].evidence == evidence


@pytest.mark.parametrize("policy", ["health-ramp", "peak-ewma-decay", "round-robin"])
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


def test_a_constant_that_the_scoring_refuses_is_reported_with_its_pool() -> None:
    with pytest.raises(SettingsError, match=r"pools\[0\].scoring.*damping_per_s"):
        config_of(settings(damping_points_per_s=0.5))
