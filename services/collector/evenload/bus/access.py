"""How clients reach the brokers: the one place where their security is made of settings, and refusals are put in words.

Every client of aiokafka takes `client_options(address)`; Faust takes the fields of the `Cluster` (scorer/app.py). An
address that is only text is a cluster without security.

aiokafka logs why a broker refused it and then raises "unable to bootstrap". So `knock` speaks with a broker first, as
far as the proof of who we are, and says what is wrong: a refusal does not go away by trying again.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import conn
from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)

from evenload.settings import KafkaSecrets, KafkaSecuritySettings, KafkaSettings, SettingsError, kafka_secrets
from evenload.settings.problems import Problem

CONNECT_S = 2.0
_HANDSHAKE_MS = 8_000
_DEFAULT_MECHANISM = "SCRAM-SHA-512"

_RIGHTS = (ClusterAuthorizationFailedError, GroupAuthorizationFailedError, TopicAuthorizationFailedError)
_PROOF = (AuthenticationFailedError, IllegalSaslStateError, SaslAuthenticationFailed)


class AccessRefused(Exception):
    """The brokers do not let us in, or not do what we must, or they are not who they should be.

    Not retriable: an operator must act, and the message says how.
    """


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where brokers are, and what they want to see. Text as which it appears is the address alone.

    Attributes:
        bootstrap: `host:port`, with commas between.
        protocol: Kafka's name of it.
        mechanism, username, password: of SASL.
        context: of TLS.
    """

    bootstrap: str
    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    context: ssl.SSLContext | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.bootstrap

    @property
    def who(self) -> str:
        """Name the user, as far as it is known on this side."""
        return f"user {self.username!r}" if self.username else "this client"


Address = str | Cluster


def cluster_of(kafka: KafkaSettings, environ: Mapping[str, str]) -> Address:
    """Return what clients need to reach the brokers; reads passwords and certificates.

    Raises:
        SettingsError: A password is missing, or a certificate cannot be used; names variable or file, key and reason.
    """
    security = kafka.security
    if security.protocol == "PLAINTEXT":
        return kafka.bootstrap
    secrets = kafka_secrets(security, environ)
    return Cluster(
        kafka.bootstrap,
        security.protocol,
        (security.mechanism or _DEFAULT_MECHANISM) if security.sasl else None,
        security.username,
        secrets.password,
        _context(security, secrets) if security.tls else None,
    )


def client_options(address: Address) -> dict[str, Any]:
    """Return the arguments by which any client of aiokafka reaches the brokers."""
    if isinstance(address, str):
        return {"bootstrap_servers": address}
    return {"bootstrap_servers": address.bootstrap} | _proof(address)


def _proof(cluster: Cluster) -> dict[str, Any]:
    options: dict[str, Any] = {"security_protocol": cluster.protocol, "ssl_context": cluster.context}
    if cluster.mechanism is not None:
        options["sasl_mechanism"] = cluster.mechanism
        options["sasl_plain_username"], options["sasl_plain_password"] = cluster.username, cluster.password
    return options


def _context(security: KafkaSecuritySettings, secrets: KafkaSecrets) -> ssl.SSLContext:
    """Make a context that verifies the brokers' certificates and names."""
    context: ssl.SSLContext = _made(
        "ca_file", security.ca_file, lambda: ssl.create_default_context(cafile=security.ca_file)
    )
    if security.cert_file is not None and security.key_file is not None:
        files, password = (security.cert_file, security.key_file), secrets.key_password or ""
        # Given as a function, or OpenSSL asks the terminal when the key has a password.
        _made("cert_file", security.cert_file, lambda: context.load_cert_chain(*files, password=lambda: password))
    return context


def _made(key: str, path: Path | None, make: Any) -> Any:
    try:
        return make()
    except ssl.SSLError as error:
        reason = f"{path} is no usable PEM: {_tls_words(error)}"
        if key == "cert_file":
            reason = (
                f"{path} and its key_file are no pair that can be used, or key_password_* is wrong: {_tls_words(error)}"
            )
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        if key == "cert_file":
            reason = f"or key_file {reason}"
    raise SettingsError([Problem(f"file {path}", f"kafka.security.{key}", reason)])


# ---- before a client connects


async def knock(address: Address) -> None:
    """Find out whether a broker lets us in; quietly, where clients would write lines for every failed try.

    Raises:
        AccessRefused: it does not, or is not who it should be.
        OSError: none can be reached.
        ValueError: the address is none.
    """
    failure: OSError = ConnectionRefusedError("no address given")
    for one in str(address).split(","):
        host, _, port = one.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"bootstrap address {one.strip()!r} should be host:port")
        try:
            await _reach(host.strip("[]"), int(port))
            if isinstance(address, Cluster):
                await _introduce(address, host.strip("[]"), int(port))
        except OSError as error:
            failure = error
            continue
        return
    raise failure


async def knock_secured(address: Address) -> None:
    """Knock where somebody asks who we are; a client's own words suffice elsewhere."""
    if isinstance(address, Cluster):
        await knock(address)


async def _reach(host: str, port: int) -> None:
    async with asyncio.timeout(CONNECT_S):
        _, writer = await asyncio.open_connection(host, port)
    writer.close()


async def _introduce(cluster: Cluster, host: str, port: int) -> None:
    try:
        connection = await conn.create_conn(host, port, request_timeout_ms=_HANDSHAKE_MS, **_proof(cluster))
    except ssl.SSLCertVerificationError as error:
        raise AccessRefused(
            f"the broker {host}:{port} is not trusted: {error.verify_message or _tls_words(error)}. Name the file of "
            "the authority that vouches for it in kafka.security.ca_file, and in kafka.bootstrap the broker by a name "
            "that is in its certificate"
        ) from error
    except ssl.SSLError as error:
        raise _no_tls(cluster, host, port, error) from error
    except UnsupportedSaslMechanismError as error:
        raise AccessRefused(
            f"the broker {host}:{port} does not take {cluster.mechanism}: {_plain(error)}. Set kafka.security.mechanism"
        ) from error
    except _PROOF as error:
        raise AccessRefused(
            f"the broker {host}:{port} refused {cluster.who} by {cluster.mechanism}: {_plain(error)}. Correct "
            "kafka.security.username and the password that password_env or password_file names"
        ) from error
    except KafkaError as error:
        cause = error.__cause__
        if isinstance(cause, ssl.SSLError):  # with TLS 1.3 the broker looks at our certificate after the handshake
            raise _no_tls(cluster, host, port, cause) from error
        raise _no_answer(cluster, host, port) from error
    except ConnectionError as error:  # so ends a handshake with a listener that knows no TLS, or a broker that leaves
        raise _no_answer(cluster, host, port) from error
    connection.close()


def _no_answer(cluster: Cluster, host: str, port: int) -> ConnectionError:
    return ConnectionError(
        f"{host}:{port} did not answer as a {cluster.protocol} listener of Kafka (kafka.security.protocol)"
    )


def _no_tls(cluster: Cluster, host: str, port: int, error: ssl.SSLError) -> AccessRefused:
    return AccessRefused(
        f"no TLS with the broker {host}:{port}: {_tls_words(error)}. kafka.security.protocol is {cluster.protocol} and "
        "must be that of this listener; cert_file, if it wants one, must be of an authority that the broker trusts"
    )


# ---- what clients raise later


def words(error: BaseException, address: Address = "") -> str:
    """Say what went wrong in one line; of a missing right, what to do."""
    text = f"{type(error).__name__}: {_plain(error)}" if str(error) else type(error).__name__
    if isinstance(error, _RIGHTS):
        who = address.who if isinstance(address, Cluster) else "this client"
        return f"{text} ({who} lacks a right: `evenload topics acls` prints what each service needs)"
    return text


def absent(topic: str, address: Address) -> str:
    """Say that a topic is not among those that the brokers tell of; they hide what one may not see."""
    if isinstance(address, Cluster):
        return f"topic {topic} does not exist, or {address.who} may not see it (`evenload topics acls`)"
    return f"topic {topic} does not exist"


def is_refusal(error: BaseException) -> bool:
    """Tell whether trying again soon is of no use."""
    return isinstance(error, (AccessRefused, *_RIGHTS))


def _plain(error: BaseException) -> str:
    """Return the text of an error on one line, without aiokafka's repetition of its class."""
    return " ".join(str(error).split()).removeprefix(f"[Error {getattr(error, 'errno', '')}] {type(error).__name__}: ")


def _tls_words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
