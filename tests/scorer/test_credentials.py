"""What Faust makes of a cluster's security is what all other clients get."""

import ssl
from typing import Any

import pytest
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

from evenload.bus.access import Cluster, client_options
from evenload.scorer.app import _credentials

CONTEXT = ssl.create_default_context()
USER: dict[str, Any] = {"username": "u", "password": "p"}


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster("k:1", "SASL_SSL", "SCRAM-SHA-512", **USER, context=CONTEXT),
        Cluster("k:1", "SASL_SSL", "SCRAM-SHA-256", **USER, context=CONTEXT),
        Cluster("k:1", "SASL_SSL", "PLAIN", **USER, context=CONTEXT),
        Cluster("k:1", "SASL_PLAINTEXT", "SCRAM-SHA-512", **USER),
        Cluster("k:1", "SSL", context=CONTEXT),
    ],
    ids=lambda cluster: f"{cluster.protocol} {cluster.mechanism}",
)
def test_faust_gets_what_aiokafka_gets(cluster: Cluster) -> None:
    wanted = client_options(cluster)
    del wanted["bootstrap_servers"]
    assert dict(credentials_to_aiokafka_auth(_credentials(cluster))) == wanted


def test_a_plain_address_has_none() -> None:
    assert _credentials("k:1") is None
