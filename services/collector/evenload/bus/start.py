"""What a process asks of Kafka before it starts: its topics as they should be, and its rights to them."""

from evenload.bus.access import Address
from evenload.bus.rights import RIGHTS, rights_of
from evenload.bus.topics import ensure_topics, specs, topic_names
from evenload.settings import KafkaSettings


async def ensure_start(
    address: Address, process: str, kafka: KafkaSettings, *, group: str = "", timeout_s: float = 30.0
) -> None:
    """Make or check the topics that a process uses, and see whether it has the rights it needs.

    Args:
        address: From `cluster_of`.
        process: A key of `RIGHTS`.
        kafka: Says what the topics should be like.
        group: Its consumer group, if it has one.
        timeout_s: For all of it.

    Raises:
        AccessRefused, BusUnavailable, TopicMismatch, TopicRefused: as `ensure_topics`.
    """
    names = topic_names(kafka.topic_prefix)._asdict()
    used = {names[what] for what in RIGHTS[process] if what in names}
    wanted = [spec for spec in specs(kafka.topic_prefix, kafka.partitions, kafka.replication) if spec.name in used]
    await ensure_topics(address, wanted, timeout_s, rights=list(rights_of(process, names, group)))
