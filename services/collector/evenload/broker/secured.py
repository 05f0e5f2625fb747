"""Listeners of the embedded Kafka that want to know who is there: for tests of what production clusters ask for.

Next to the plain listener, whose clients are User:ANONYMOUS and may do everything, the node opens one for TLS + SASL
and one for mutual TLS, and an authorizer refuses there what no ACL allows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class Secured:
    """The listeners, on 127.0.0.1.

    Attributes:
        sasl_port: TLS, with PLAIN and SCRAM.
        tls_port: TLS, with a certificate of the client.
        key_store: PEM: the broker's key (PKCS 8) and its certificate.
        trust_store: PEM: the authorities of clients' certificates.
        users: Name -> password, for all mechanisms.
    """

    sasl_port: int
    tls_port: int
    key_store: Path
    trust_store: Path
    users: Mapping[str, str] = field(repr=False)

    def properties(self, plain: Mapping[str, str]) -> dict[str, str]:
        """Return Kafka properties to be put over those of the plain node."""
        ports = {"SASL": self.sasl_port, "TLS": self.tls_port}
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        protocols = plain["listener.security.protocol.map"] + ",SASL:SASL_SSL,TLS:SSL"
        module = "org.apache.kafka.common.security"
        users = "".join(f' user_{name}="{password}"' for name, password in self.users.items())
        stores = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.key_store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trust_store),
        }
        return {
            "listeners": f"{plain['listeners']},{listeners}",
            "advertised.listeners": f"{plain['advertised.listeners']},{listeners}",
            "listener.security.protocol.map": protocols,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            **stores,
            "listener.name.tls.ssl.client.auth": "required",
            "listener.name.sasl.sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)),
            "listener.name.sasl.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required{users};",
            **{
                f"listener.name.sasl.{mechanism.lower()}.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;"
                for mechanism in SCRAM
            },
        }

    def format_arguments(self) -> list[str]:
        """Return what `kafka-storage format` must know: SCRAM users are part of the metadata."""
        return [
            f"--add-scram={mechanism}=[name={name},password={password}]"
            for name, password in self.users.items()
            for mechanism in SCRAM
        ]
