"""The topics: their names, partitions and settings; making them, and checking the ones that are there.

Nothing relies on auto-creation: a topic that a broker makes by itself has the wrong partition count and retention, and
a client that waits for a missing topic spins. So every process calls `ensure_topics` before it reads or writes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from struct import unpack_from
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidReplicationFactorError,
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from evenload.bus.access import AccessRefused, Address, client_options, is_refusal, knock, words
from evenload.bus.rights import Right, check_rights

DEFAULT_PREFIX = "evenload"
DEFAULT_PARTITIONS = 4
MESSAGE_BYTES_MAX = 1024 * 1024

_DAY_MS = 24 * 60 * 60 * 1000
_RETRY_S = 0.25
_REQUEST_MS = 5_000
# What would silently change the meaning of the log; other settings are the operator's to tune.
_CHECKED = ("cleanup.policy", "message.timestamp.type")


class BusUnavailable(ConnectionError):
    """No Kafka answered in time. Retriable: the message names the address."""


class TopicRefused(Exception):
    """Kafka answered and refused to make a topic. Not retriable: the message has its reason."""


class TopicMismatch(Exception):
    """A topic exists with other partitions or settings than ours. Not retriable: an operator must decide."""


class TopicNames(NamedTuple):
    """The five names under one prefix."""

    telemetry: str
    snapshots: str
    state: str
    decisions: str
    dead_letters: str


def topic_names(prefix: str = DEFAULT_PREFIX) -> TopicNames:
    """Names under a prefix; another prefix lets several installations (or tests) share one Kafka."""
    kinds = ("telemetry", "snapshots", "state", "decisions", "dead-letters")
    return TopicNames(*(f"{prefix}.{kind}" for kind in kinds))


TELEMETRY, SNAPSHOTS, STATE, DECISIONS, DEAD_LETTERS = topic_names()


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it should be.

    Attributes:
        name: Full name.
        partitions: Partition count, fixed for the life of the topic.
        config: Topic settings by Kafka's names.
        replication: Copies of each partition.
    """

    name: str
    partitions: int
    config: Mapping[str, str]
    replication: int = 1


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as it is.

    Attributes:
        name: Full name.
        exists: False leaves the rest empty.
        start_offsets: First offset still kept, per partition.
        end_offsets: Offset of the next record, per partition.
        config: All effective settings by Kafka's names.
        problems: How it differs from its spec, in words.
    """

    name: str
    exists: bool
    start_offsets: tuple[int, ...] = ()
    end_offsets: tuple[int, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def partitions(self) -> int:
        """Partition count."""
        return len(self.end_offsets)

    @property
    def records(self) -> int:
        """Offsets between start and end: the records kept, or more where compaction has removed some."""
        return sum(self.end_offsets) - sum(self.start_offsets)


def specs(
    prefix: str = DEFAULT_PREFIX,
    partitions: int = DEFAULT_PARTITIONS,
    replication: int = 1,
    retention_ms: int = 7 * _DAY_MS,
) -> tuple[TopicSpec, ...]:
    """The five topics as they should be; all with the same partition count, since all are keyed by instance."""
    if partitions < 1 or replication < 1:
        raise ValueError(f"partitions and replication must be at least 1, not {partitions} and {replication}")
    names = topic_names(prefix)
    common = {"max.message.bytes": str(MESSAGE_BYTES_MAX)}
    if replication >= 3:
        common["min.insync.replicas"] = "2"  # with acks=all, one lost broker loses nothing
    log = common | {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        # Only closed segments expire, so that a record lives for at most retention + one segment.
        "segment.ms": str(min(_DAY_MS, retention_ms)),
    }
    # Time inside the fold is the log's own, in one order per partition; producers' clocks play no part.
    telemetry = log | {"message.timestamp.type": "LogAppendTime"}
    other = log | {"message.timestamp.type": "CreateTime"}
    state = common | {
        "cleanup.policy": "compact",
        "message.timestamp.type": "CreateTime",
        # Recovery reads all of it, at about 1,000 records per second: keep few old records per key.
        "segment.ms": "10000",
        "max.compaction.lag.ms": "10000",
        "min.cleanable.dirty.ratio": "0.01",
    }
    configs = {
        names.telemetry: telemetry,
        names.snapshots: other,
        names.state: state,
        names.decisions: other,
        names.dead_letters: other,
    }
    return tuple(TopicSpec(name, partitions, config, replication) for name, config in configs.items())


@lru_cache(maxsize=65_536)
def partition_for(key: bytes, partitions: int) -> int:
    """Partition of a key, as Kafka's default partitioner chooses it: murmur2 without its sign bit, modulo the count."""
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    """Austin Appleby's MurmurHash2 with Kafka's seed (Utils.murmur2 in Kafka's clients); 32 bits, unsigned."""
    mask, mix = 0xFFFFFFFF, 0x5BD1E995
    whole = len(data) & ~3
    value = 0x9747B28C ^ len(data)
    for word in unpack_from(f"<{whole >> 2}I", data):
        word = word * mix & mask  # noqa: PLW2901
        word = (word ^ (word >> 24)) * mix & mask  # noqa: PLW2901
        value = (value * mix & mask) ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * mix & mask
    value = (value ^ (value >> 13)) * mix & mask
    return value ^ (value >> 15)


async def ensure_topics(
    bootstrap: Address, specs: Sequence[TopicSpec], timeout_s: float = 30.0, *, rights: Sequence[Right] = ()
) -> None:
    """Make the missing topics, wait until every partition has a leader, and check the ones that were there.

    Several processes may do it at once.

    Args:
        bootstrap: Address, `host:port`, or several with commas.
        specs: The topics as they should be.
        timeout_s: For all of it; an unreachable broker is tried again until then.
        rights: What the caller is going to need, checked as well.

    Raises:
        AccessRefused: Kafka does not let us in, or we lack one of `rights`.
        BusUnavailable: no Kafka answered in time, or partitions had no leader in time.
        TopicRefused: Kafka refused to make a topic.
        TopicMismatch: a topic has another partition count, cleanup policy or timestamp type.
    """
    clock = asyncio.get_running_loop()
    deadline = clock.time() + timeout_s
    refused: TopicRefused | None = None
    cause = "no attempt was made"
    while clock.time() < deadline:
        try:
            async with asyncio.timeout_at(deadline), admin_client(bootstrap, deadline - clock.time()) as admin:
                await check_rights(admin, bootstrap, rights)  # first: what we may not see looks as if it were missing
                await _ensure(admin, specs)
                await check_rights(admin, bootstrap, rights)
                return
        except _UnreadyError as error:
            cause = str(error)
            refused = error.refused
        except (OSError, KafkaError, TimeoutError) as error:
            if is_refusal(error):
                raise AccessRefused(words(error, bootstrap)) from error
            cause = words(error, bootstrap) if not isinstance(error, TimeoutError) else cause
        await asyncio.sleep(max(0.0, min(_RETRY_S, deadline - clock.time())))
    if refused is not None:
        raise refused
    raise _unavailable(bootstrap, timeout_s, cause)


async def describe_topics(
    bootstrap: Address, specs: Sequence[TopicSpec], timeout_s: float = 10.0
) -> list[TopicDescription]:
    """What each topic is like now, in the order of `specs`; changes nothing.

    Raises:
        AccessRefused: Kafka does not let us in, or does not tell us.
        BusUnavailable: no Kafka answered in time.
    """
    try:
        async with asyncio.timeout(timeout_s), admin_client(bootstrap, timeout_s) as admin:
            present = await _metadata(admin)
            found = {spec.name: present[spec.name] for spec in specs if spec.name in present}
            configs = await _configs(admin, found)
            starts, ends = await _offsets(bootstrap, found)
    except (OSError, KafkaError, TimeoutError, _UnreadyError) as error:
        if is_refusal(error):
            raise AccessRefused(words(error, bootstrap)) from error
        raise _unavailable(bootstrap, timeout_s, words(error, bootstrap)) from error
    return [
        TopicDescription(
            spec.name,
            True,
            starts[spec.name],
            ends[spec.name],
            configs[spec.name],
            tuple(_problems(spec, len(ends[spec.name]), configs[spec.name])),
        )
        if spec.name in found
        else TopicDescription(spec.name, False, problems=("does not exist",))
        for spec in specs
    ]


class _UnreadyError(Exception):
    """Kafka answers, but something is not there yet."""

    def __init__(self, message: str, refused: TopicRefused | None = None) -> None:
        super().__init__(message)
        self.refused = refused


async def _ensure(admin: Any, specs: Sequence[TopicSpec]) -> None:
    present = await _metadata(admin)
    missing = [spec for spec in specs if spec.name not in present]
    if missing:
        await _create(admin, missing)
    partitions = await _await_leaders(admin, specs)
    configs = await _configs(admin, [spec.name for spec in specs])
    for spec in specs:
        problems = list(_problems(spec, partitions[spec.name], configs[spec.name]))
        if problems:
            raise TopicMismatch(
                f"topic {spec.name} is not as it should be: {'; '.join(problems)}. Either configure what is there, "
                "or use another topic prefix, or stop all writers, delete the topic and start again"
            )


def _problems(spec: TopicSpec, partitions: int, config: Mapping[str, str]) -> Iterable[str]:
    if partitions != spec.partitions:
        yield f"it has {partitions} partitions and should have {spec.partitions}"
    for name in _CHECKED:
        if name in spec.config and config.get(name) != spec.config[name]:
            yield f"{name} is {config.get(name)} and should be {spec.config[name]}"


async def _create(admin: Any, missing: Sequence[TopicSpec]) -> None:
    topics = [
        NewTopic(spec.name, spec.partitions, spec.replication, topic_configs=dict(spec.config)) for spec in missing
    ]
    response = await admin.create_topics(topics, timeout_ms=_REQUEST_MS)
    for name, code, *rest in response.topic_errors:
        error = for_code(code)
        if code == 0 or error is TopicAlreadyExistsError:  # another process was first
            continue
        if error is TopicAuthorizationFailedError:
            raise AccessRefused(
                f"topic {name} does not exist, or this user may not see it, and it may not make it: an administrator "
                "makes the topics with `evenload topics create`; `evenload topics acls` prints who needs which rights"
            )
        refused = TopicRefused(f"Kafka refused to make topic {name}: {(rest or [''])[0] or error.__name__}")
        if error.retriable or error is InvalidReplicationFactorError:  # brokers may still be joining
            raise _UnreadyError(str(refused), refused)
        raise refused


async def _metadata(admin: Any) -> dict[str, Mapping[str, Any]]:
    """All topics; asking for named ones could make them on a broker that auto-creates."""
    return {topic["topic"]: topic for topic in await admin.describe_topics()}


async def _await_leaders(admin: Any, specs: Sequence[TopicSpec]) -> dict[str, int]:
    """Wait until every partition has a leader: partition count by name. The caller's timeout bounds it."""
    while True:
        topics = await _metadata(admin)
        waiting = [spec.name for spec in specs if not _has_leaders(topics.get(spec.name))]
        if not waiting:
            return {spec.name: len(topics[spec.name]["partitions"]) for spec in specs}
        await asyncio.sleep(_RETRY_S / 5)


def _has_leaders(topic: Mapping[str, Any] | None) -> bool:
    if topic is None or topic["error_code"] != 0 or not topic["partitions"]:
        return False
    return all(partition["leader"] >= 0 for partition in topic["partitions"])


async def _configs(admin: Any, names: Iterable[str]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    found: dict[str, dict[str, str]] = {}
    for response in await admin.describe_configs(resources) if resources else ():
        for code, message, _kind, name, entries in response.resources:
            if for_code(code) is UnknownTopicOrPartitionError:  # made a moment ago, not on every broker yet
                raise _UnreadyError(f"settings of {name} are not known yet")
            if code != 0:
                raise for_code(code)(f"settings of {name}: {message}")
            found[name] = {entry[0]: entry[1] for entry in entries}
    return found


async def _offsets(
    bootstrap: Address, topics: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """First and next offset of every partition, by topic."""
    if not topics:
        return {}, {}
    places = {name: [TopicPartition(name, at) for at in range(len(topics[name]["partitions"]))] for name in topics}
    every = [place for some in places.values() for place in some]
    consumer = AIOKafkaConsumer(**client_options(bootstrap), request_timeout_ms=_REQUEST_MS)
    try:
        await consumer.start()
        first, following = await consumer.beginning_offsets(every), await consumer.end_offsets(every)
    finally:
        await consumer.stop()
    return (
        {name: tuple(first[place] for place in some) for name, some in places.items()},
        {name: tuple(following[place] for place in some) for name, some in places.items()},
    )


@asynccontextmanager
async def admin_client(bootstrap: Address, time_left_s: float) -> AsyncIterator[Any]:
    """A client for administration, for as long as it is needed.

    Raises:
        AccessRefused: Kafka does not let us in.
        OSError, KafkaError: it cannot be reached.
    """
    await knock(bootstrap)
    # Below the time left, so that the client gives up first: cancelled while it connects, it leaves its socket open.
    request_ms = max(1, min(_REQUEST_MS, int(time_left_s * 800)))
    admin = AIOKafkaAdminClient(**client_options(bootstrap), request_timeout_ms=request_ms)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


def _unavailable(bootstrap: Address, timeout_s: float, cause: str) -> BusUnavailable:
    return BusUnavailable(
        f"no usable Kafka at {bootstrap} within {timeout_s:g} s (last: {cause}); start one with `evenload broker`, "
        "or set EVENLOAD_KAFKA__BOOTSTRAP (kafka.bootstrap in the configuration file) to where one runs; one that "
        "wants TLS or a user needs kafka.security too"
    )
