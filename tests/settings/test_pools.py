import pytest
from pydantic import ValidationError

from evenload.settings import (
    CollectorSettings,
    InstanceSettings,
    ScorerSettings,
    ScoringSettings,
    Settings,
)
from evenload.settings.instances import host_port


def pool(name: str, models: list[str], *urls: str, **more: object) -> dict[str, object]:
    return {"name": name, "models": models, "instances": [{"url": url} for url in urls], **more}


@pytest.mark.parametrize(
    ("url", "identity"),
    [
        ("http://gpu-1:8000", "gpu-1:8000"),
        ("http://gpu-1:8000/prefix/", "gpu-1:8000"),
        ("http://gpu-1", "gpu-1:80"),
        ("https://api.example.com", "api.example.com:443"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_an_instance_is_called_after_host_and_port_unless_it_has_an_id(url: str, identity: str) -> None:
    assert host_port(url) == identity
    assert InstanceSettings.model_validate({"url": url}).id == identity
    assert InstanceSettings.model_validate({"url": url, "id": "mine"}).id == "mine"
    assert not InstanceSettings.model_validate({"url": url}).url.endswith("/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gpu-1:8000",
        "ftp://h",
        "http://",
        "http://h:99999",
        "http://h:0",
        "http://a..b:8000",
        f"http://{'a' * 64}.internal:8000",
        "http://h?x=1",
        "http://h#f",
        "http://h h",
        7,
    ],
)
def test_an_address_of_another_shape_is_refused(url: object) -> None:
    with pytest.raises(ValidationError) as caught:
        InstanceSettings.model_validate({"url": url})
    assert [error["loc"] for error in caught.value.errors()] == [("url",)]


def test_a_model_served_by_two_pools_is_refused_but_a_catch_all_beside_it_is_fine() -> None:
    Settings.model_validate({"pools": [pool("a", ["m"], "http://h:1"), pool("b", ["*"], "http://h:2")]})
    with pytest.raises(ValidationError, match="model 'm' is already used by pool 'a'"):
        Settings.model_validate({"pools": [pool("a", ["m"], "http://h:1"), pool("b", ["m"], "http://h:2")]})
    with pytest.raises(ValidationError, match=r"model '\*' is already used by pool 'a'"):
        Settings.model_validate({"pools": [pool("a", ["*"], "http://h:1"), pool("b", ["*"], "http://h:2")]})


def test_names_and_ids_are_unique_in_the_file() -> None:
    with pytest.raises(ValidationError, match="pool name 'a' is already used"):
        Settings.model_validate({"pools": [pool("a", ["m"], "http://h:1"), pool("a", ["n"], "http://h:2")]})
    with pytest.raises(ValidationError, match="instance id 'h:1' is already used by pool 'a'"):
        Settings.model_validate({"pools": [pool("a", ["m"], "http://h:1"), pool("b", ["n"], "http://h:1/x")]})


@pytest.mark.parametrize(
    "values",
    [
        {"kv_threshold": 1},
        {"kv_threshold": -0.1},
        {"ewma_alpha": 0},
        {"warmup_score": 101},
        {"ttft_limit_ms": float("inf")},
        {"cooling_ms_min": 4000, "cooling_ms_max": 3000},
        {"cooling_ms_cap": 1000},
        {"evidence": "all"},
        {"alpha": 0.2},
    ],
)
def test_constants_outside_their_bounds_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ScoringSettings.model_validate(values)


def test_bounds_that_depend_on_each_other_are_checked() -> None:
    with pytest.raises(ValidationError, match="linger_ms_min"):
        Settings(collector=CollectorSettings(linger_ms_min=100, linger_ms_max=50))
    with pytest.raises(ValidationError, match="flush_ms"):
        Settings(scorer=ScorerSettings(flush_ms=500, heartbeat_ms=400))
    with pytest.raises(ValidationError, match="three times"):
        Settings(scorer=ScorerSettings(session_timeout_s=6, heartbeat_interval_s=3))


@pytest.mark.parametrize("url", ["http://h:8000/v1", "http://h:8000/v1/", "http://h:8000"])
def test_an_address_with_or_without_v1_is_the_same(url: str) -> None:
    assert InstanceSettings(url=url).url == "http://h:8000"
