"""The least rights at Kafka that each process needs: one table, which is printed, checked at starts, and tested.

Read and Write imply Describe. Writing idempotently needs no right of its own since Kafka 3.0. Router, and whoever reads
without a group, need no right on groups.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from aiokafka.errors import (
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from evenload.bus.access import AccessRefused, Address, Cluster
from evenload.bus.rights_requests import GroupRequest, MetadataRequest

GROUP = "group"

# Process -> what it uses (`topic_names`' fields, or the group of `scorer.app_id`) -> operations.
RIGHTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "router": {"telemetry": ("Write",), "snapshots": ("Read",), "decisions": ("Write",)},
    "scorer": {
        "telemetry": ("Read", "DescribeConfigs"),
        "snapshots": ("Write", "DescribeConfigs"),
        "state": ("Read", "Write", "DescribeConfigs"),
        "dead_letters": ("Write", "DescribeConfigs"),
        GROUP: ("Read",),
    },
    "collector": {"telemetry": ("Write", "DescribeConfigs"), "snapshots": ("Read", "DescribeConfigs")},
    "audit": {
        "telemetry": ("Read", "DescribeConfigs"),
        "snapshots": ("Read", "DescribeConfigs"),
        "decisions": ("Read", "DescribeConfigs"),
    },
    "topics": {
        "telemetry": ("Create", "Describe", "DescribeConfigs"),
        "snapshots": ("Create", "Describe", "DescribeConfigs"),
        "state": ("Create", "Describe", "DescribeConfigs"),
        "decisions": ("Create", "Describe", "DescribeConfigs"),
        "dead_letters": ("Create", "Describe", "DescribeConfigs", "Read"),
    },
}

# Kafka's AclOperation codes; a bit each in what a broker says of our rights.
OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10}


ALL = -1


class Right(NamedTuple):
    """One line of the table, with the names of an installation.

    Attributes:
        kind: `topic` or `group`.
        name: of the topic or group.
        operation: Kafka's name of it.
    """

    kind: str
    name: str
    operation: str

    def __str__(self) -> str:
        return f"{self.operation} on {self.kind} {self.name}"


def rights_of(process: str, topics: Mapping[str, str], group: str) -> Iterator[Right]:
    """Yield what a process needs.

    Args:
        process: A key of `RIGHTS`.
        topics: `topic_names(prefix)._asdict()`.
        group: `scorer.app_id`.
    """
    for what, operations in RIGHTS[process].items():
        kind, name = (GROUP, group) if what == GROUP else ("topic", topics[what])
        for operation in operations:
            yield Right(kind, name, operation)


def command(right: Right, principal: str, bootstrap: str) -> str:
    """Return the command of Kafka's own tools that grants a right."""
    return (
        f"kafka-acls.sh --bootstrap-server {bootstrap} --command-config admin.properties --add "
        f"--allow-principal {shlex.quote(principal)} --operation {right.operation} --{right.kind} {right.name}"
    )


async def check_rights(admin: Any, address: Address, wanted: Iterable[Right]) -> None:
    """Ask the broker what we may, and compare. Topics that do not exist, and brokers without security, are passed over.

    Args:
        admin: A started AIOKafkaAdminClient.
        address: How it was reached.
        wanted: What is needed.

    Raises:
        AccessRefused: something is missing; names all of it. Of a topic that we may not even see, that is everything.
    """
    if not isinstance(address, Cluster):
        return
    wanted = list(wanted)
    granted = await _topics_granted(admin, sorted({right.name for right in wanted if right.kind == "topic"}))
    for group in sorted({right.name for right in wanted if right.kind == GROUP}):
        granted[GROUP, group] = await _group_granted(admin, group)
    missing = [
        right for right in wanted if not granted.get((right.kind, right.name), ALL) >> OPERATIONS[right.operation] & 1
    ]
    if missing:
        raise AccessRefused(
            f"{address.who} lacks rights at Kafka: {', '.join(map(str, missing))}. An administrator grants them; "
            "`evenload topics acls` prints the commands"
        )


async def _topics_granted(admin: Any, names: list[str]) -> dict[tuple[str, str], int]:
    response = await admin._send_request(MetadataRequest(names))
    return {
        ("topic", topic): 0 if code == TopicAuthorizationFailedError.errno else bits
        for code, topic, _internal, _partitions, bits in response.topics
        if code != UnknownTopicOrPartitionError.errno
    }


async def _group_granted(admin: Any, group: str) -> int:
    try:
        coordinator = await admin.find_coordinator(group)
    except GroupAuthorizationFailedError:
        return 0
    response = await admin._send_request(GroupRequest(group), coordinator)
    code, *_, bits = response.groups[0]
    return 0 if code == GroupAuthorizationFailedError.errno else int(bits)
