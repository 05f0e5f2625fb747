from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evenload.settings import Settings, SettingsError, backend_keys, files, load_settings

POOL = '[{"name": "a", "models": ["m"], "instances": [{"url": "http://gpu-1:8000"}]}]'


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "conf.yaml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def problems_of(
    text: str = "", *, overrides: dict[str, Any] | None = None, environ: dict[str, str] | None = None
) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(write(text), overrides, environ or {})
    return str(caught.value).splitlines()


def test_without_any_source_there_are_only_defaults() -> None:
    settings = load_settings(None, {}, {})
    assert settings == Settings()
    assert (settings.kafka.bootstrap, settings.router.port, settings.pools) == ("127.0.0.1:9092", 8080, ())


def test_command_line_beats_environment_beats_file_beats_default() -> None:
    file = write("router: {port: 1, drain_s: 1, stale_view_ms: 1000, max_body_bytes: 2000}")
    environ = {"EVENLOAD_ROUTER__PORT": "2", "EVENLOAD_ROUTER__DRAIN_S": "2", "EVENLOAD_ROUTER__STALE_VIEW_MS": "2000"}
    router = load_settings(file, {"router.port": 3, "router": {"drain_s": 3}, "router.seed": None}, environ).router
    assert (router.port, router.drain_s, router.stale_view_ms, router.max_body_bytes) == (3, 3, 2000, 2000)
    assert (router.host, router.seed) == ("127.0.0.1", None)


def test_the_file_is_the_option_then_the_variable_then_the_one_in_the_folder() -> None:
    write("router: {port: 1}", "evenload.yaml")
    in_variable = write("router: {port: 2}", "variable.yaml")
    option = write("router: {port: 3}", "option.yaml")
    environ = {"EVENLOAD_CONFIG": str(in_variable)}
    assert load_settings(None, {}, {}).router.port == 1
    assert load_settings(None, {}, environ).router.port == 2
    assert load_settings(option, {}, environ).router.port == 3


def test_a_list_is_replaced_as_a_whole_and_read_from_the_environment_as_json() -> None:
    file = write("pools: [{name: b, models: [x], instances: [{url: 'http://h'}, {url: 'http://i'}]}]")
    settings = load_settings(file, {}, {"EVENLOAD_POOLS": POOL})
    assert [pool.name for pool in settings.pools] == ["a"]
    assert [instance.id for instance in settings.pools[0].instances] == ["gpu-1:8000"]


def test_a_section_in_json_and_a_single_key_of_it_go_together() -> None:
    environ = {"EVENLOAD_SCORER": '{"flush_ms": 50}', "EVENLOAD_SCORER__WEB_PORT": "9000"}
    scorer = load_settings(None, {}, environ).scorer
    assert (scorer.flush_ms, scorer.web_port) == (50, 9000)


def test_every_problem_is_listed_with_source_key_and_reason() -> None:
    text = """\
router:
  prot: 1
  port: 99999
pools:
  - name: a
    models: [m]
    policy: prescient
    instances: [{url: "ftp://h", id: x}]
"""
    environ = {"EVENLOAD_SCORER__FLUSHMS": "3", "EVENLOAD_COLECTOR__X": "1", "EVENLOAD_LOG__LEVEL": "loud"}
    lines = problems_of(text, overrides={"broker.port": "x"}, environ=environ)
    for start, *parts in (
        ["conf.yaml:2: router.prot: unknown key; did you mean 'port'?"],
        ["conf.yaml:3: router.port: ", "65535", "99999"],
        ["conf.yaml:7: pools[0].policy: must be 'predictive', ", "not 'prescient'"],
        ["conf.yaml:8: pools[0].instances[0].url: must be http(s)://host[:port][/prefix], not 'ftp://h'"],
        ["environment EVENLOAD_SCORER__FLUSHMS: scorer.flushms: unknown key; did you mean 'flush_ms'?"],
        ["environment EVENLOAD_COLECTOR__X: colector.x: unknown key; did you mean 'collector'?"],
        ["environment EVENLOAD_LOG__LEVEL: log.level: must be "],
        ["command line: broker.port: must be a valid integer"],
    ):
        found = [line for line in lines if line.startswith(start) and all(part in line for part in parts)]
        assert len(found) == 1, (start, lines)
    assert len(lines) == 8


def test_an_error_names_the_source_that_won() -> None:
    file = "router: {port: 1}"
    assert problems_of(file, environ={"EVENLOAD_ROUTER__PORT": "0"})[0].startswith(
        "environment EVENLOAD_ROUTER__PORT: "
    )
    both = problems_of(file, environ={"EVENLOAD_ROUTER__PORT": "1"}, overrides={"router.port": 0})
    assert both[0].startswith("command line: router.port: ")
    in_list = problems_of("pools: [{name: a}]", environ={"EVENLOAD_POOLS": '[{"instances": [{"url": "http://h"}]}]'})
    assert in_list == [
        "environment EVENLOAD_POOLS: pools[0].name: is required",
        "environment EVENLOAD_POOLS: pools[0].models: is required",
    ]


@pytest.mark.parametrize("value", ["[{", "chat", "3", ""])
def test_a_list_in_the_environment_that_is_not_json_is_an_error_not_a_crash(value: str) -> None:
    (line,) = problems_of(environ={"EVENLOAD_POOLS": value})
    assert line.startswith("environment EVENLOAD_POOLS: pools: must be a list (in the environment: JSON)")


@pytest.mark.parametrize("value", ["{", "x", "[]"])
def test_a_section_that_is_not_a_mapping_is_an_error_even_beside_its_keys(value: str) -> None:
    (line,) = problems_of(environ={"EVENLOAD_ROUTER": value, "EVENLOAD_KAFKA__PARTITIONS": "7"})
    assert line.startswith("environment EVENLOAD_ROUTER: router: must be a mapping of keys")


def test_variables_that_are_no_settings_are_left_alone() -> None:
    environ = {"EVENLOAD_TEST_BOOTSTRAP": "x", "EVENLOAD_SHARED": "y", "EVENLOADX": "z", "PATH": "p"}
    assert load_settings(None, {}, environ) == Settings()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("router: {port: 1}\nrouter: {port: 2}", "conf.yaml:2: router: stands twice"),
        ("router:\n  port: [", "conf.yaml:2: is not valid YAML: "),
        ("- a\n- b", "conf.yaml:1: must be a mapping of sections"),
        ("just text", "conf.yaml:1: must be a mapping of sections"),
        ("a: 1\n---\nb: 2", "conf.yaml:2: is not valid YAML: "),
        ("x: &x\n  y: *x", "conf.yaml:1: x.y: contains itself"),
        ("router: {1: 2}", "conf.yaml:1: router"),
        ("!!python/object:os.system {}", "conf.yaml:1: is not valid YAML: "),
        ("router: {drain_s: .nan}", "conf.yaml:1: router.drain_s: must be a finite number"),
        ("router: {name: 2024-13-45}", "conf.yaml: is not valid YAML: month must be in 1..12"),
        ("router: {port: !!bool x}", "conf.yaml: is not valid YAML: "),
        ("router: {port: !!int ''}", "conf.yaml: is not valid YAML: "),
        ("router: {name: !!timestamp x}", "conf.yaml: is not valid YAML: "),
        ("x: &x\n  <<: *x", "conf.yaml:1: x.<<: contains itself"),
        ("router: " + "[" * 3000, "conf.yaml: is nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(text: str, reason: str) -> None:
    assert problems_of(text)[0].startswith(reason)


@pytest.mark.parametrize(("first", "more"), [("[1]", "[{}]"), ("{a: 1}", "{{<<: [{}]}}")])
def test_a_file_whose_aliases_stand_for_more_than_there_is_memory_is_refused(
    first: str, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "NODES_MAX", 5_000)
    lines = [f"x0: &x0 {first}"]
    lines += [f"x{n}: &x{n} {more.format(', '.join([f'*x{n - 1}'] * 9))}" for n in range(1, 30)]
    assert problems_of("\n".join(lines)) == [
        "conf.yaml: is not valid YAML: more than 5000 values, aliases counted",
    ]


def test_a_file_that_is_not_there_is_an_error_and_one_that_is_empty_is_not() -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_settings(Path("nowhere.yaml"), {}, {})
    assert load_settings(write(""), {}, {}) == Settings()
    assert load_settings(write("router:\n  # port: 1\n"), {}, {}) == Settings()


def test_a_file_that_is_not_text_is_an_error() -> None:
    Path("conf.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="is not UTF-8"):
        load_settings(Path("conf.yaml"), {}, {})


def test_the_credential_in_a_bad_url_is_not_repeated_in_the_error() -> None:
    (line,) = problems_of("pools: [{name: a, models: [m], instances: [{url: 'http://u:hunter2@h'}]}]")
    assert "hunter2" not in line
    assert "api_key_env" in line


def test_a_reserve_without_a_tier_is_an_error() -> None:
    tiers = "pools: [{name: a, models: [m], spill_over_ms: 900, instances: [{url: 'http://g'}, {url: 'http://h'%s}]}]"
    (line,) = problems_of(tiers % "")
    assert "pools[0].spill_over_ms: has no effect" in line
    assert load_settings(write(tiers % ", priority: 1"), {}, {}).pools[0].spill_over_ms == 900


def test_settings_built_directly_read_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENLOAD_ROUTER__PORT", "1")
    assert Settings().router.port == 8080


def test_settings_cannot_be_changed() -> None:
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.router.port = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        settings.router = settings.router  # type: ignore[misc]


KEYED = "pools: [{name: a, models: [m], instances: [{id: i, url: 'http://h', api_key_env: EVENLOAD_KEY_A}]}]"


def test_a_key_is_read_from_the_variable_that_the_instance_names() -> None:
    environ = {"EVENLOAD_KEY_A": "secret"}
    settings = load_settings(write(KEYED), {}, environ)
    assert backend_keys(settings, environ) == {"i": "secret"}
    assert "secret" not in repr(settings)


def test_a_missing_key_stops_the_start() -> None:
    settings = load_settings(write(KEYED), {}, {})
    with pytest.raises(SettingsError, match=r"EVENLOAD_KEY_A: pools\[0\]\.instances\[0\]\.api_key_env: .*missing"):
        backend_keys(settings, {"EVENLOAD_KEY_A": ""})


@pytest.mark.parametrize(
    "pasted",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "a3f09c5e21b84d067f3a9c5e21b84d06",
        "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
        "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
        "QWERTYUIOPASDFGHJKLZXCVBNM",
    ],
)
@pytest.mark.parametrize("value", ["", "two words\n"])
def test_a_key_that_could_be_a_variables_name_is_not_repeated_in_the_error(pasted: str, value: str) -> None:
    settings = load_settings(write(KEYED.replace("EVENLOAD_KEY_A", pasted)), {}, {})
    with pytest.raises(SettingsError, match=r"^environment: pools\[0\]\.instances\[0\]\.api_key_env: .*'i'") as caught:
        backend_keys(settings, {pasted: value})
    assert pasted not in str(caught.value)


@pytest.mark.parametrize(
    ("listen", "reason"),
    [
        ("9080", "must be `host:port`"),
        ("host:0", "must be `host:port`"),
        ("host:70000", "must be `host:port`"),
        ("http://host:1", "must be `host:port`"),
        ("::1:9080", "must be `host:port`"),
        ("0.0.0.0:8080", "another port than router.port"),
    ],
)
def test_a_bad_admin_address_is_said_so(listen: str, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {"router.admin_listen": listen}, {})
    assert reason in str(caught.value)
    assert "router.admin_listen" in str(caught.value)


def test_an_admin_address_may_be_ipv6() -> None:
    settings = load_settings(None, {"router.admin_listen": "[::1]:9080"}, {})
    assert settings.router.admin_address == ("::1", 9080)


@pytest.mark.parametrize("router", ["max_held_body_bytes: 2000", "max_body_bytes: 600000000"])
def test_a_bound_on_held_bodies_that_no_body_fits_stops_the_start(router: str) -> None:
    (problem,) = problems_of(f"router: {{{router}}}")
    assert "router.max_held_body_bytes: must not be less than router.max_body_bytes" in problem
