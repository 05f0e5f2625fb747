"""A real Kafka that wants TLS and users, and refuses what no ACL allows; and settings of clients for it."""

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

from evenload.broker import Broker, ports
from evenload.broker.secured import Secured
from evenload.bus.rights import OPERATIONS, RIGHTS, Right
from evenload.settings import KafkaSettings
from tests.authority import Authority

HOST = "127.0.0.1"
PASSWORD = "a pass-word: with (everything)"
TYPES = {"topic": 2, "group": 3}
_LITERAL, _ALLOW = 3, 3
_FAST_GROUPS = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "0"}


@dataclass(frozen=True)
class SecuredKafka:
    """The broker, and the files that clients need.

    Attributes:
        plain: the address of administrators, who need not say who they are.
        sasl, tls: addresses of the secured listeners.
        password_file: of all users.
        certificate, key: of the client `CN=certified`.
    """

    plain: str
    sasl: str
    tls: str
    authority: Authority
    password_file: Path
    certificate: Path
    key: Path

    def by_user(self, user: str, mechanism: str = "SCRAM-SHA-512", **other: Any) -> dict[str, Any]:
        """`kafka.security` of a user."""
        return {
            "protocol": "SASL_SSL",
            "mechanism": mechanism,
            "username": user,
            "password_file": str(self.password_file),
            "ca_file": str(self.authority.file),
        } | other

    def by_certificate(self) -> dict[str, Any]:
        """`kafka.security` of the client with a certificate."""
        files = {"ca_file": self.authority.file, "cert_file": self.certificate, "key_file": self.key}
        return {"protocol": "SSL"} | {key: str(path) for key, path in files.items()}

    def settings(self, security: dict[str, Any], prefix: str = "evenload") -> KafkaSettings:
        """`kafka` as a whole."""
        bootstrap = self.tls if security["protocol"] == "SSL" else self.sasl
        return KafkaSettings.model_validate({"bootstrap": bootstrap, "topic_prefix": prefix, "security": security})

    async def grant(self, principal: str, rights: Iterable[Right]) -> None:
        """Add rights."""
        async with self.admin() as admin:
            for right in rights:
                response = await admin._send_request(CreateAclsRequest(*_acl(principal, right)))
                assert [code for code, _ in response.creation_responses] == [0], response

    async def revoke(self, principal: str, rights: Iterable[Right]) -> None:
        """Take rights away; what was not there is an error."""
        async with self.admin() as admin:
            for right in rights:
                response = await admin._send_request(DeleteAclsRequest(*_acl(principal, right)))
                assert [len(found) for _, _, found in response.filter_responses] == [1], response

    @contextlib.asynccontextmanager
    async def admin(self) -> AsyncIterator[Any]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.plain, request_timeout_ms=5000)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()


def _acl(principal: str, right: Right) -> tuple[Any, ...]:
    return TYPES[right.kind], right.name, _LITERAL, principal, "*", OPERATIONS[right.operation], _ALLOW


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """One for this test session, with a user per process of Evenload and one more, `nobody`."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    certificate, key = authority.certify(HOST)
    store = folder / "broker.pem"
    store.write_text(key.read_text() + certificate.read_text())
    password_file = folder / "password"
    password_file.write_text(PASSWORD + "\n")
    users = dict.fromkeys([*RIGHTS, "nobody"], PASSWORD)
    sasl, tls = ports.choose_free(HOST), ports.choose_free(HOST)
    listeners = Secured(sasl, tls, store, authority.file, users)
    with Broker(folder / "kafka", properties=_FAST_GROUPS, secured=listeners) as broker:
        client = authority.certify("certified")
        yield SecuredKafka(broker.bootstrap, f"{HOST}:{sasl}", f"{HOST}:{tls}", authority, password_file, *client)
