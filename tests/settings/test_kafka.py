"""`kafka.security`: what goes together, where a password may stand, and that none is ever shown."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evenload.settings import KafkaSecuritySettings, KafkaSettings, SettingsError, kafka_secrets, load_settings
from evenload.settings.kafka import security_conflicts

SASL = {"protocol": "SASL_SSL", "username": "router", "password_env": "PW"}


def conflicts(**security: Any) -> dict[str, str]:
    return dict(security_conflicts(KafkaSecuritySettings.model_validate(security)))


@pytest.mark.parametrize(
    "security",
    [
        {},
        SASL,
        SASL | {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-256"},
        SASL | {"ca_file": "ca.pem", "cert_file": "c.pem", "key_file": "k.pem", "key_password_file": "kp"},
        {"protocol": "SSL"},
    ],
)
def test_what_goes_together_passes(security: dict[str, Any]) -> None:
    assert conflicts(**security) == {}


@pytest.mark.parametrize(
    ("security", "key", "reason"),
    [
        ({"username": "u"}, "username", "is for protocol SASL_SSL or SASL_PLAINTEXT, not PLAINTEXT"),
        ({"protocol": "SSL", "mechanism": "PLAIN"}, "mechanism", "is for protocol SASL_SSL or SASL_PLAINTEXT, not SSL"),
        ({"ca_file": "ca.pem"}, "ca_file", "is for protocol SSL or SASL_SSL, not PLAINTEXT"),
        (SASL | {"protocol": "SASL_PLAINTEXT", "ca_file": "x"}, "ca_file", "is for protocol SSL or SASL_SSL"),
        (SASL | {"username": None}, "username", "is required with protocol SASL_SSL"),
        (SASL | {"password_env": None}, "password_env", "or password_file is required with protocol SASL_SSL"),
        (SASL | {"password_file": "x"}, "password_file", "must not be given together with password_env"),
        ({"protocol": "SSL", "cert_file": "c"}, "key_file", "is required with cert_file"),
        ({"protocol": "SSL", "key_file": "c"}, "cert_file", "is required with key_file"),
        ({"protocol": "SSL", "key_password_env": "P"}, "key_file", "is required with a password for it"),
    ],
)
def test_what_does_not_go_together_is_named_with_key_and_reason(
    security: dict[str, Any], key: str, reason: str
) -> None:
    found = conflicts(**security)
    assert found.keys() == {key}
    assert reason in found[key]


@pytest.mark.parametrize("bootstrap", ["k:99999", "k:0", "a..b:9092", "k:9092,:1", "k"])
def test_brokers_have_names_and_ports(bootstrap: str) -> None:
    with pytest.raises(ValidationError, match="bootstrap"):
        KafkaSettings(bootstrap=bootstrap)


def test_the_error_says_where_in_the_file_the_key_stands(tmp_path: Path) -> None:
    file = tmp_path / "evenload.yaml"
    file.write_text(
        "kafka:\n  security:\n    protocol: SSL\n    username: u\n    cert_file: c.pem\n    mechanism: KERBEROS\n"
    )
    with pytest.raises(SettingsError) as error:
        load_settings(file, environ={})
    assert [str(problem).removeprefix(str(tmp_path)) for problem in error.value.problems] == [
        "/evenload.yaml:6: kafka.security.mechanism: "
        "must be 'PLAIN', 'SCRAM-SHA-256' or 'SCRAM-SHA-512', not 'KERBEROS'"
    ]
    file.write_text(file.read_text().replace("KERBEROS", "PLAIN"))
    with pytest.raises(SettingsError) as error:
        load_settings(file, environ={})
    assert [str(problem).removeprefix(str(tmp_path)) for problem in error.value.problems] == [
        "/evenload.yaml:6: kafka.security.mechanism: is for protocol SASL_SSL or SASL_PLAINTEXT, not SSL",
        "/evenload.yaml:4: kafka.security.username: is for protocol SASL_SSL or SASL_PLAINTEXT, not SSL",
        "/evenload.yaml:2: kafka.security.key_file: is required with cert_file",
    ]


def test_a_password_in_the_place_of_its_variable_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "evenload.yaml"
    file.write_text("kafka: {security: {protocol: SASL_SSL, username: u, password_env: 'hunter2 hunter2'}}\n")
    with pytest.raises(SettingsError) as error:
        load_settings(file, environ={})
    assert "hunter2" not in str(error.value)
    assert "kafka.security.password_env: must be the name of an environment variable" in str(error.value)


def test_a_variable_of_our_own_prefix_may_hold_the_password() -> None:
    environ = {
        "EVENLOAD_KAFKA__SECURITY__PROTOCOL": "SASL_SSL",
        "EVENLOAD_KAFKA__SECURITY__USERNAME": "router",
        "EVENLOAD_KAFKA__SECURITY__PASSWORD_ENV": "EVENLOAD_KAFKA_PASSWORD",
        "EVENLOAD_KAFKA_PASSWORD": "hunter2",
    }
    settings = load_settings(environ=environ)
    assert kafka_secrets(settings.kafka.security, environ).password == "hunter2"
    assert "hunter2" not in repr(settings) + repr(kafka_secrets(settings.kafka.security, environ))


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"pass word: x\n", "pass word: x"), ("pässword\r\n".encode(), "pässword"), (b" kept ", " kept ")],
)
def test_a_file_holds_the_password_and_its_line_end_is_not_part_of_it(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    security = KafkaSecuritySettings.model_validate(SASL | {"password_env": None, "password_file": str(file)})
    assert kafka_secrets(security, {}).password == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\n", "is missing or empty"),
        (b"secret\nsecond", "holds more than one line of a password"),
        (b"secret" * 4000, "holds more than one line of a password"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_a_file_without_a_password_is_named_and_not_repeated(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    security = KafkaSecuritySettings.model_validate(SASL | {"password_env": None, "password_file": str(file)})
    with pytest.raises(SettingsError) as error:
        kafka_secrets(security, {})
    assert str(error.value) == f"file {file}: kafka.security.password_file: {reason}"


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^environment PW: kafka\.security\.password_env: is missing or empty$"):
        kafka_secrets(KafkaSecuritySettings.model_validate(SASL), {})
