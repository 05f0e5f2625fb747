"""The configuration of the embedded Kafka: one node, sized for a laptop."""

from collections.abc import Mapping
from pathlib import Path

from evenload.broker.errors import BrokerError
from evenload.broker.secured import Secured

HOST = "127.0.0.1"
_MIB = 1024 * 1024


def server_properties(
    *,
    log_folder: Path,
    port: int,
    controller_port: int,
    overrides: Mapping[str, str] | None = None,
    secured: Secured | None = None,
) -> dict[str, str]:
    """Properties of a node that is broker and controller at once and listens on the loopback address only.

    Args:
        log_folder: Where Kafka keeps its data; no comma in its path, which Kafka takes as a list.
        port: For clients.
        controller_port: For the node's talk with itself.
        overrides: Property name -> value; they win.
        secured: More listeners.

    Raises:
        BrokerError: The folder's path has a comma.
    """
    if "," in str(log_folder):
        raise BrokerError(f"Kafka takes a comma in the path of its data folder as a list: {log_folder}; use another")
    node = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "CLIENT",
        "listeners": f"CLIENT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"CLIENT://{HOST}:{port}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(log_folder),
    }
    if secured is not None:
        node |= secured.properties(node)
    return node | _SIZES | _TOPICS | dict(overrides or {})


# Memory, threads and disk of one machine that also runs everything else.
_SIZES = {
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    # After a crash the node waits until its former self has timed out: 7 s to the first answer instead of 14 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "metadata.max.idle.interval.ms": "0",  # no empty metadata records twice a second; a third less idle CPU
    "num.recovery.threads.per.data.dir": "2",
    # The defaults make 50 partitions of each, for clusters with thousands of groups.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "log.segment.bytes": str(64 * _MIB),
    "log.index.size.max.bytes": str(1 * _MIB),  # the default of 10 MiB is allocated for every open segment
    "log.retention.bytes": str(512 * _MIB),  # per partition, whichever of size and age comes first
    "log.retention.check.interval.ms": "60000",
    "log.segment.delete.delay.ms": "10000",
}

_TOPICS = {
    "auto.create.topics.enable": "false",  # a mistyped name is an error, and ours need their own settings
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    # The state topic is compacted at ten seconds, so the cleaner must look often; 4 MiB index 170,000 keys a pass.
    "log.cleaner.enable": "true",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": str(4 * _MIB),
    "log.cleaner.io.buffer.size": str(_MIB // 4),
    "log.cleaner.backoff.ms": "2000",
}


def format_properties(properties: Mapping[str, str]) -> str:
    """Text of a Java properties file, in ASCII."""
    return "".join(f"{_escape(name)}={_escape(value)}\n" for name, value in sorted(properties.items()))


def _escape(text: str) -> str:
    special = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "#": "\\#", "!": "\\!", "=": "\\=", ":": "\\:"}
    return "".join(special.get(char, char if " " <= char <= "~" else _unicode(char)) for char in text)


def _unicode(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
