"""Presets fill in what is known of a provider; what cannot work stops the start, and says where and why."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evenload.settings import InstanceSettings, Settings, SettingsError, backend_keys, load_settings
from evenload.settings.providers import AZURE_API_VERSION, PRESETS, service_of


def instance(**given: Any) -> InstanceSettings:
    return InstanceSettings.model_validate(given)


def pool(*instances: dict[str, Any], **more: Any) -> Settings:
    return Settings.model_validate({"pools": [{"name": "p", "models": ["m"], "instances": list(instances), **more}]})


@pytest.mark.parametrize(
    ("preset", "more", "url", "auth", "variable"),
    [
        ("openai", {}, "https://api.openai.com", "bearer", "OPENAI_API_KEY"),
        ("qwen", {}, "https://dashscope.aliyuncs.com/compatible-mode", "bearer", "DASHSCOPE_API_KEY"),
        ("hunyuan", {}, "https://api.hunyuan.cloud.tencent.com", "bearer", "HUNYUAN_API_KEY"),
        ("ark", {}, "https://ark.cn-beijing.volces.com/api/v3", "bearer", "ARK_API_KEY"),
        (
            "bedrock",
            {"region": "us-west-2"},
            "https://bedrock-runtime.us-west-2.amazonaws.com/openai",
            "bearer",
            "AWS_BEARER_TOKEN_BEDROCK",
        ),
        (
            "azure",
            {"url": "https://r.openai.azure.com/openai/v1/"},
            "https://r.openai.azure.com/openai",
            "api-key",
            "AZURE_OPENAI_API_KEY",
        ),
        (
            "azure-deployments",
            {"url": "https://r.openai.azure.com"},
            "https://r.openai.azure.com",
            "api-key",
            "AZURE_OPENAI_API_KEY",
        ),
    ],
)
def test_a_preset_says_all_but_the_key(preset: str, more: dict[str, Any], url: str, auth: str, variable: str) -> None:
    made = instance(preset=preset, **more)
    assert (made.url, made.kind, made.auth, made.api_key_env) == (url, "none", auth, variable)
    assert made.deployments == (preset == "azure-deployments")
    assert InstanceSettings.model_validate(made.model_dump(mode="json")) == made, "files written for children read back"


def test_every_preset_is_tested_above() -> None:
    marks = test_a_preset_says_all_but_the_key.pytestmark
    assert {case[0] for case in marks[0].args[1]} == set(PRESETS)


def test_what_is_given_wins_over_the_preset(tmp_path: Path) -> None:
    made = instance(
        preset="azure-deployments",
        url="http://127.0.0.1:1",
        auth="bearer",
        api_key_file=tmp_path / "token",
        query={"api-version": "2025-01-01-preview"},
    )
    assert (made.auth, made.api_key_env, made.query) == ("bearer", None, {"api-version": "2025-01-01-preview"})


def test_an_own_query_keeps_the_version_that_azure_wants() -> None:
    made = instance(preset="azure-deployments", url="https://r", query={"x": "1"})
    assert made.query == {"api-version": AZURE_API_VERSION, "x": "1"}


@pytest.mark.parametrize(
    ("preset", "given", "url"),
    [
        ("azure", "https://r.openai.azure.com", "https://r.openai.azure.com/openai"),
        ("azure", "https://r.openai.azure.com/", "https://r.openai.azure.com/openai"),
        ("azure", "https://r.openai.azure.com/openai", "https://r.openai.azure.com/openai"),
        ("azure", "https://gate/az/openai/v1/", "https://gate/az/openai"),
        ("azure-deployments", "https://r.openai.azure.com/", "https://r.openai.azure.com"),
        ("azure-deployments", "https://r.openai.azure.com/openai/", "https://r.openai.azure.com"),
        ("azure-deployments", "https://r.openai.azure.com/openai/v1", "https://r.openai.azure.com"),
        ("azure-deployments", "https://gate/az", "https://gate/az"),
    ],
)
def test_the_address_that_azures_portal_shows_becomes_the_base(preset: str, given: str, url: str) -> None:
    made = instance(preset=preset, url=given)
    assert made.url == url
    assert InstanceSettings.model_validate(made.model_dump(mode="json")) == made


@pytest.mark.parametrize("query", ["", "?api-version=2025-01-01-preview"])
@pytest.mark.parametrize(
    ("preset", "path", "reason"),
    [
        ("azure", "/openai/v1/chat/completions", "write https://r/openai/v1 as url"),
        ("azure", "/openai/deployments/d/chat/completions", "is for preset azure-deployments"),
        ("azure-deployments", "/openai/deployments/d", "write https://r as url, and 'd' as the instance's name"),
        ("azure-deployments", "/openai/deployments/d/chat/completions", "write https://r as url, and 'd'"),
        ("azure-deployments", "/openai/v1/responses", "write https://r as url"),
    ],
)
def test_the_address_of_a_call_at_azure_is_refused_with_what_to_write(
    preset: str, path: str, query: str, reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        instance(preset=preset, url=f"https://r{path}{query}")


@pytest.mark.parametrize(
    "path", ["/a/../openai//v1", "//openai/v1", "/./openai", "/%2e%2e/openai/v1", "/openai%2Fv1/.."]
)
def test_a_path_that_could_be_signed_in_two_ways_is_refused_with_what_to_write(path: str) -> None:
    with pytest.raises(ValidationError, match=r"auth sigv4 signs the path in one form only: write https://h/openai as"):
        instance(preset="bedrock", auth="sigv4", region="us-west-2", url=f"https://h{path}")
    assert instance(preset="bedrock", region="us-west-2", url=f"https://h{path}").auth == "bearer", "not signed"
    with pytest.raises(ValidationError, match="write https://h/a%3Ab as url"):
        instance(url="https://h/a:b", auth="sigv4", region="us-west-2")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"preset": "azure"}, r"needs a url of the form https://RESOURCE"),
        ({"preset": "bedrock"}, r"needs a region"),
        ({"preset": "nobody"}, r"preset"),
        ({"url": "http://h", "auth": "sigv4"}, r"needs a region"),
        ({"url": "http://h", "auth": "sigv4", "region": "x", "api_key_env": "K"}, r"do not fit"),
        ({"url": "http://h", "api_key_env": "K", "api_key_file": "f"}, r"exclude each other"),
        ({"url": "http://h", "headers": {"Authorization": "Bearer x"}}, r"credential: use auth"),
        ({"url": "http://h", "headers": {"X-Goog-Api-Key": "x"}}, r"credential: use auth"),
        ({"url": "http://h", "headers": {"Ocp-Apim-Subscription-Key": "x"}}, r"credential: use auth"),
        ({"url": "http://h", "headers": {"x-amz-security-token": "x"}}, r"credential: use auth"),
        ({"url": "http://h", "headers": {"Host": "x"}}, r"set by the router"),
        ({"preset": "azure", "url": "r.openai.azure.com"}, r"must be http"),
        ({"preset": "azure", "url": "https://r?api-version=1"}, r"without query"),
        ({"preset": "azure", "url": "https://[r"}, r"must be http"),
        ({"url": "http://h", "headers": {"x": "a\r\nb: c"}}, r"not a header"),
        ({"url": "http://h", "query": {"api_key": "x"}}, r"credential"),
        ({"url": "http://h", "weight": 0}, r"greater than 0"),
        ({"url": "http://h", "model_names": {"m": ""}}, r"at least 1 character"),
        ({"url": "http://h/\u00fc"}, r"in ASCII"),
        ({"id": "i", "url": "http://h\u00e4/v1"}, r"in ASCII"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        instance(**given)


def test_a_key_in_the_place_of_its_variable_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "evenload.yaml"
    file.write_text("pools: [{name: p, models: [m], instances: [{preset: openai, api_key_env: sk-secret}]}]")
    with pytest.raises(SettingsError, match=r"api_key_env: must be the name of an environment variable") as caught:
        load_settings(file, {}, {})
    assert "sk-secret" not in str(caught.value)


def test_a_refused_header_or_query_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "evenload.yaml"
    text = "pools: [{name: p, models: [m], instances: [{url: 'http://h', %s}]}]"
    for given in ("headers: {Authorization: Bearer sk-secret}", "query: {api_key: sk-secret}"):
        file.write_text(text % given)
        with pytest.raises(SettingsError) as caught:
            load_settings(file, {}, {})
        assert "credential" in str(caught.value)
        assert "evenload.yaml:1" in str(caught.value)
        assert "sk-secret" not in str(caught.value)


def test_providers_only_are_chosen_by_peak_ewma_decay_and_a_mixed_pool_by_predictive() -> None:
    provider, engine = {"preset": "openai"}, {"url": "http://h:1"}
    assert pool(provider).pools[0].policy == "peak-ewma-decay"
    assert pool({"url": "http://h:2", "kind": "none"}, provider).pools[0].policy == "peak-ewma-decay"
    assert pool(engine, provider).pools[0].policy == "predictive"
    assert pool(engine).pools[0].policy == "predictive"
    assert pool(provider, policy="round-robin").pools[0].policy == "round-robin"


def test_a_weight_that_the_policy_would_ignore_is_refused() -> None:
    pool({"url": "http://h:1", "weight": 2})
    with pytest.raises(ValidationError, match="round-robin knows no weights"):
        pool({"url": "http://h:1", "weight": 2}, policy="round-robin")


def test_a_missing_key_names_instance_and_variable_or_file(tmp_path: Path) -> None:
    empty, good = tmp_path / "empty", tmp_path / "good"
    empty.write_text(" \n")
    good.write_text("sk-good\n")
    settings = pool(
        {"preset": "openai", "id": "o"},
        {"preset": "qwen", "id": "q", "api_key_file": str(empty)},
        {"preset": "ark", "id": "a", "api_key_file": str(tmp_path / "gone")},
        {"preset": "hunyuan", "id": "h", "api_key_file": str(good)},
    )
    with pytest.raises(SettingsError) as caught:
        backend_keys(settings, {"OPENAI_API_KEY": ""})
    first, second, third = map(str, caught.value.problems)
    assert first == (
        "environment OPENAI_API_KEY: pools[0].instances[0].api_key_env: the key of instance 'o' is missing or empty"
    )
    assert f"file {empty}: pools[0].instances[1].api_key_file: the key of instance 'q' is empty" in second
    assert "'a' cannot be read: No such file" in third
    empty.write_text("sk-q")
    (tmp_path / "gone").write_text("sk-a")
    found = backend_keys(settings, {"OPENAI_API_KEY": "sk-o"})
    assert found == {"o": "sk-o", "q": "sk-q", "a": "sk-a", "h": "sk-good"}


def test_a_key_that_no_header_can_carry_is_refused_without_being_repeated() -> None:
    with pytest.raises(SettingsError, match="has characters that no key has") as caught:
        backend_keys(pool({"preset": "openai"}), {"OPENAI_API_KEY": "sk-sec\nret: x"})
    assert "sk-sec" not in str(caught.value)


def test_keys_are_no_part_of_the_settings() -> None:
    settings = pool({"preset": "openai"})
    backend_keys(settings, {"OPENAI_API_KEY": "sk-secret"})
    assert "sk-secret" not in settings.model_dump_json()
    assert "sk-secret" not in repr(settings)


def test_the_service_that_signs_follows_the_endpoint() -> None:
    assert service_of("https://bedrock-runtime.us-west-2.amazonaws.com/openai") == "bedrock"
    assert service_of("https://bedrock-mantle.us-west-2.api.aws/v1") == "bedrock-mantle"
