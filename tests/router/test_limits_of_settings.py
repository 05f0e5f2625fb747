"""F29, turned round: each limit that can be configured does something."""

import msgspec
import pytest

from evenload.router.beginnings import Beginnings
from evenload.router.build import limits_of, pools_of
from evenload.router.limits import Limits
from evenload.router.upstreams import upstreams
from evenload.settings import Settings
from evenload.settings.pools import RetrySettings, TimeoutSettings

ODD = {
    ("timeouts", "first_token_s"): (7.0, "first_token_s", 7.0),
    ("timeouts", "answer_s"): (8.0, "answer_s", 8.0),
    ("timeouts", "idle_s"): (9.0, "idle_s", 9.0),
    ("retries", "attempts_max"): (5, "attempts_max", 5),
    ("retries", "backoff_ms"): (30, "back_off_s", 0.03),
    ("retries", "backoff_ms_max"): (4000, "back_off_s_max", 4.0),
}
ELSEWHERE = {("timeouts", "connect_s"), ("retries", "share"), ("retries", "per_s_min")}


def settings_with(**pool: object) -> Settings:
    instances = [{"id": "a", "url": "http://127.0.0.1:1", "kind": "none"}]
    one = {"name": "p", "models": ["m"], "instances": instances, **pool}
    return Settings.model_validate({"pools": [one], "router": {"max_body_bytes": 123_456}})


@pytest.mark.parametrize(("section", "key"), ODD, ids=lambda part: part)
def test_a_limit_of_a_pool_is_the_one_of_its_requests_and_changes_no_other(section: str, key: str) -> None:
    value, name, limit = ODD[section, key]
    usual, odd = settings_with(), settings_with(**{section: {key: value}})
    before, after = (pools_of(one, Beginnings(b"k"))["p"].limits for one in (usual, odd))
    assert getattr(before, name) != limit
    assert after == msgspec.structs.replace(before, **{name: limit})


def test_no_limit_of_a_pool_is_forgotten_here() -> None:
    keys = {("timeouts", key) for key in TimeoutSettings.model_fields}
    keys |= {("retries", key) for key in RetrySettings.model_fields}
    assert keys == set(ODD) | ELSEWHERE


def test_the_time_to_connect_is_its_instances_clients() -> None:
    (client,) = upstreams(settings_with(timeouts={"connect_s": 11}), {}).values()
    assert client._connect_timeout_s == 11.0


def test_the_largest_body_is_that_of_all_requests_whoever_serves_them() -> None:
    settings = settings_with()
    assert limits_of(settings) == Limits(body_bytes_max=123_456)
    assert pools_of(settings, Beginnings(b"k"))["p"].limits.body_bytes_max == 123_456
