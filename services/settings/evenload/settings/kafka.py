"""The Kafka cluster: where it is, its topics, and how every client of it proves who it is."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from evenload.settings.base import Name, Section
from evenload.settings.problems import Problem, SettingsError

SECRET_BYTES_MAX = 16 * 1024

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_SASL_KEYS = ("mechanism", "username", "password_env", "password_file")
_TLS_KEYS = ("ca_file", "cert_file", "key_file", "key_password_env", "key_password_file")


class KafkaSecuritySettings(Section):
    """How clients speak with the brokers; the same for reading, writing, administration and Faust."""

    protocol: Protocol = Field(
        "PLAINTEXT", description="As the brokers' listener: with SSL encrypted, with SASL by user."
    )
    mechanism: Mechanism | None = Field(None, description="How SASL proves the user. Null is SCRAM-SHA-512.")
    username: str | None = Field(None, min_length=1, max_length=255, description="Of SASL.")
    password_env: str | None = Field(
        None, pattern=_VARIABLE, max_length=255, description="Environment variable that holds the password of SASL."
    )
    password_file: Path | None = Field(None, description="File that holds it; a line end after it is not part of it.")
    ca_file: Path | None = Field(
        None, description="Authorities that vouch for the brokers, PEM. Null takes the system's. Names are verified."
    )
    cert_file: Path | None = Field(None, description="Certificate of this client and its chain, PEM, for mutual TLS.")
    key_file: Path | None = Field(None, description="Private key of `cert_file`, PEM.")
    key_password_env: str | None = Field(
        None,
        pattern=_VARIABLE,
        max_length=255,
        description="Environment variable that holds the password of `key_file`.",
    )
    key_password_file: Path | None = Field(None, description="File that holds it.")

    @property
    def sasl(self) -> bool:
        """Whether a user is proven by SASL."""
        return self.protocol.startswith("SASL_")

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")


class KafkaSettings(Section):
    """The Kafka cluster and the topics on it."""

    bootstrap: str = Field(
        "127.0.0.1:9092",
        pattern=r"^[^\s,:]+:\d{1,5}(,[^\s,:]+:\d{1,5})*$",
        max_length=4096,
        description="Brokers as `host:port`, separated by commas.",
    )

    @field_validator("bootstrap")
    @classmethod
    def _can_be_connected_to(cls, value: str) -> str:
        for broker in value.split(","):
            host, _, port = broker.rpartition(":")
            try:
                host.encode("idna")
            except UnicodeError:
                raise PydanticCustomError("bootstrap", f"{host!r} is no name of a host") from None
            if not 0 < int(port) < 65536:
                raise PydanticCustomError("bootstrap", f"the port of {broker!r} is not 1 to 65535")
        return value

    topic_prefix: Name = Field("evenload", description="First part of all topic names.")
    partitions: int = Field(
        4, ge=1, le=1000, description="Partitions of telemetry, snapshots and state; fixed for the life of a cluster."
    )
    replication: int = Field(1, ge=1, le=10, description="Replicas per partition; 3 in production.")
    security: KafkaSecuritySettings = Field(
        default_factory=KafkaSecuritySettings, description="How clients prove who they are."
    )


class KafkaSecrets(NamedTuple):
    """What must not be shown."""

    password: str | None = None
    key_password: str | None = None

    def __repr__(self) -> str:
        return "KafkaSecrets(...)"


def security_conflicts(security: KafkaSecuritySettings) -> Iterator[tuple[str, str]]:
    """Find keys that do not go together; yields key and reason."""
    given = [key for key in (*_SASL_KEYS, *_TLS_KEYS) if getattr(security, key) is not None]
    fits = dict.fromkeys(_SASL_KEYS, security.sasl) | dict.fromkeys(_TLS_KEYS, security.tls)
    for key in given:
        if not fits[key]:
            kind = "SASL_SSL or SASL_PLAINTEXT" if key in _SASL_KEYS else "SSL or SASL_SSL"
            yield key, f"is for protocol {kind}, not {security.protocol}"
    if security.sasl:
        yield from _incomplete_user(security.protocol, given)
    for one, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if one in given and other not in given:
            yield other, f"is required with {one}"
    for kind in ("password", "key_password"):
        if {f"{kind}_env", f"{kind}_file"} <= set(given):
            yield f"{kind}_file", f"must not be given together with {kind}_env"
    if {"key_password_env", "key_password_file"} & set(given) and not {"key_file", "cert_file"} & set(given):
        yield "key_file", "is required with a password for it"


def _incomplete_user(protocol: Protocol, given: list[str]) -> Iterator[tuple[str, str]]:
    if "username" not in given:
        yield "username", f"is required with protocol {protocol}"
    if not {"password_env", "password_file"} & set(given):
        yield "password_env", f"or password_file is required with protocol {protocol}"


def kafka_secrets(security: KafkaSecuritySettings, environ: Mapping[str, str]) -> KafkaSecrets:
    """Read the passwords that the settings name.

    Raises:
        SettingsError: A variable is missing or empty, or a file cannot be read or has none in it.
    """
    problems: list[Problem] = []

    def read(kind: str) -> str | None:
        variable, file = getattr(security, f"{kind}_env"), getattr(security, f"{kind}_file")
        if variable is not None:
            source, key = f"environment {variable}", f"{kind}_env"
            text, reason = _take(lambda: environ.get(variable, ""))
        elif file is not None:
            source, key = f"file {file}", f"{kind}_file"
            text, reason = _take(lambda: _read(file))
        else:
            return None
        if reason:
            problems.append(Problem(source, f"kafka.security.{key}", reason))
        return text

    secrets = KafkaSecrets(read("password"), read("key_password"))
    if problems:
        raise SettingsError(problems)
    return secrets


def _take(source: Callable[[], str]) -> tuple[str, str]:
    """Return the secret without its line end, or else what is wrong with it; never the secret in the reason."""
    try:
        text = source().rstrip("\r\n")
    except OSError as error:
        return "", f"cannot be read: {error.strerror or type(error).__name__}"
    except UnicodeDecodeError:
        return "", "is not UTF-8"
    if not text:
        return "", "is missing or empty"
    if len(text) > SECRET_BYTES_MAX or any(mark in text for mark in "\r\n\0"):
        return "", "holds more than one line of a password"
    return text, ""


def _read(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(SECRET_BYTES_MAX + 3).decode()
