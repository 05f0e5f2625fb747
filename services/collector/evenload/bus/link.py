"""The connection to Kafka for writing: one idempotent producer, made anew whenever it fails.

The client library retries by itself and keeps the order while it does. What it cannot do is recover from a fatal error,
from brokers that all changed their addresses, or from a start without a broker; so after ten seconds without an
acknowledgement the producer is dropped and the same records are sent by a new one. Readers must therefore expect a
record twice: telemetry is recognised by (incarnation, sequence), decisions by (request, attempt).
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer

from evenload.bus.access import AccessRefused, Address, absent, client_options, knock_secured, words
from evenload.bus.client_logs import AWAY, limit_client_logs, limited_logger
from evenload.bus.forever import cancelled

log = limited_logger(__name__)

GROUP_BYTES_MAX = 900_000  # uncompressed records of one request and partition; Kafka refuses more than 1 MiB
_REQUEST_MS = 8_000
RETRY_MS = 300  # of each loop inside the client; at its default of 100 an outage costs a tenth of a core
ATTEMPT_S = 10.0  # as long as events count as fresh; beyond it they are sent with their true age
# The client's lz4 is level 9 only: 100 decisions take 756 us of the loop; zstd takes 121 us and a quarter less room.
COMPRESSION = "zstd"
_START_S = 10.0
_BACKOFF_S = 0.2
_BACKOFF_S_MAX = 2.0

Record = tuple[bytes | None, bytes]


class Receipt(NamedTuple):
    """What Kafka said.

    Attributes:
        written: how many of the records, from the first on, are now in the log.
        offset: of the first one; -1 when the broker no longer knew it.
        timestamp_ms: the broker's, -1 when the topic keeps the producers' own.
    """

    written: int
    offset: int
    timestamp_ms: int


class _LostError(Exception):
    """The producer is of no use any more."""


class _UnreadyError(Exception):
    """A topic is not there yet, or not as it should be."""


class ProducerLink:
    """A producer for the topics of one prefix, all with the same partition count.

    Attributes:
        connects: producers started.
        failures: attempts that failed, for whatever reason.
    """

    def __init__(self, bootstrap: Address, client_id: str, partitions: int, *, attempt_s: float = ATTEMPT_S) -> None:
        """Describe the connection; nothing happens before the first `produce`.

        Args:
            bootstrap: Brokers, `host:port` with commas between.
            client_id: Name in the brokers' logs.
            partitions: Of all its topics.
            attempt_s: Longest wait for an acknowledgement before the producer is given up.
        """
        self.connects = 0
        self.failures = 0
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._partitions = partitions
        self._attempt_s = attempt_s
        self._session: _Session | None = None
        self._lock: asyncio.Lock = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<ProducerLink {self._bootstrap} connected={self.connected} failures={self.failures}>"

    @property
    def connected(self) -> bool:
        """Whether a producer is up. It says nothing about a broker that stopped answering a moment ago."""
        return self._session is not None

    async def produce(self, topic: str, partition: int, records: Callable[[], Sequence[Record]]) -> Receipt:
        """Write records in one piece; keeps trying until Kafka has acknowledged them.

        Args:
            topic: Name; a topic that is missing is waited for.
            partition: Where they go.
            records: (key, value) pairs, asked for again at each attempt and then the same ones in the same order.

        Returns:
            What was written: as many from the first on as fit one request.
        """
        backoff_s = _BACKOFF_S
        tries = 0
        while True:
            session = None
            try:
                session = await self._ready(topic)
                wanted = records()
                # After a failure one at a time, in case the size of the whole was the reason.
                return await session.produce(topic, partition, wanted[:1] if tries else wanted)
            except (Exception, asyncio.CancelledError) as error:  # whatever it is, the records must get there
                if cancelled():
                    raise
                self._note(session, topic, error)
            tries += 1
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)

    async def close(self, timeout_s: float = 2.0) -> None:
        """Leave; what was not acknowledged stays unacknowledged."""
        self._drop(self._session)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=timeout_s)
        for task in self._leaving:
            task.cancel()
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _ready(self, topic: str) -> "_Session":
        async with self._lock:
            if self._session is None:
                self._session = await self._connect()
            session = self._session
        if topic not in session.checked:
            await _check_topic(session.producer, topic, self._partitions, self._bootstrap)
            session.checked.add(topic)
        return session

    async def _connect(self) -> "_Session":
        limit_client_logs()
        await knock_secured(self._bootstrap)
        producer = AIOKafkaProducer(
            **client_options(self._bootstrap),
            client_id=self._client_id,
            acks="all",
            enable_idempotence=True,
            compression_type=COMPRESSION,
            max_batch_size=GROUP_BYTES_MAX,
            request_timeout_ms=_REQUEST_MS,
            retry_backoff_ms=RETRY_MS,
        )
        tolerate_retried_batches(producer)
        try:
            async with asyncio.timeout(_START_S):
                await producer.start()
        except BaseException:
            await producer.stop()
            raise
        self.connects += 1
        log.info("connected to Kafka at %s as %s", self._bootstrap, self._client_id)
        return _Session(producer, self._attempt_s)

    def _note(self, session: "_Session | None", topic: str, error: BaseException) -> None:
        self.failures += 1
        away = None if isinstance(error, _UnreadyError | AccessRefused) else AWAY
        reason = words(error, self._bootstrap)
        log.warning("cannot write to %s at %s, trying again: %s", topic, self._bootstrap, reason, extra=away)
        if session is not None:
            self._drop(session)

    def _drop(self, session: "_Session | None") -> None:
        """Let go of a producer; whoever waits for it tries again with the next one."""
        if session is None or session is not self._session:
            return
        self._session = None
        session.lost.set_result(None)
        task = asyncio.get_running_loop().create_task(_abandon(session.producer))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


class _Session:
    """A producer that runs."""

    def __init__(self, producer: Any, attempt_s: float) -> None:
        self.producer = producer
        self._attempt_s = attempt_s
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.checked: set[str] = set()

    async def produce(self, topic: str, partition: int, records: Sequence[Record]) -> Receipt:
        builder = self.producer.create_batch()
        count = 0
        for key, value in records:
            if builder.append(key=key, value=value, timestamp=None) is None:
                break
            count += 1
        builder.close()
        metadata = await self._unless_lost(self._deliver(builder, topic, partition))
        if metadata is None:
            raise _LostError("the connection was given up")
        return Receipt(count, metadata.offset, metadata.timestamp)

    async def _deliver(self, builder: Any, topic: str, partition: int) -> Any:
        return await (await self.producer.send_batch(builder, topic, partition=partition))

    async def _unless_lost(self, work: Any) -> Any:
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self.lost}, timeout=self._attempt_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _LostError(
                "the connection was given up" if self.lost.done() else f"no answer within {self._attempt_s:g} s"
            )
        finally:
            task.cancel()


async def _check_topic(producer: Any, topic: str, partitions: int, address: Address) -> None:
    """Refuse a topic that is missing or has other partitions; asking for it by name could make it."""
    cluster = await producer.client.fetch_all_metadata()
    found = cluster.partitions_for_topic(topic)
    if not found:
        raise _UnreadyError(absent(topic, address))
    if len(found) != partitions:
        raise _UnreadyError(f"topic {topic} has {len(found)} partitions and should have {partitions}")


class _Pending(set[Any]):
    """Batches under way. One that waits for another try is not among them, and may end all the same."""

    def remove(self, batch: Any) -> None:
        self.discard(batch)


def tolerate_retried_batches(producer: Any) -> None:
    """Let batches end while they wait for another try, as they do when their time is over or the producer is stopped.

    aiokafka 0.14 takes such a batch from the pending ones a second time and fails in a callback (_pop_batch, KeyError):
    harmless, since the batch has its result, but one traceback in the log for each of them.
    """
    producer._message_accumulator._pending_batches = _Pending()


async def _abandon(producer: Any) -> None:
    """Stop a producer without waiting for what it cannot deliver; its own `stop` waits for that without end.

    This reaches into aiokafka 0.14, which offers no other way.
    """
    sender, accumulator = producer._sender, producer._message_accumulator
    if sender.sender_task is not None:
        sender.sender_task.cancel()
        await asyncio.wait([sender.sender_task], timeout=2 * _REQUEST_MS / 1000)
    # Its own bookkeeping takes every batch that ends from the pending ones, also those that wait for another try.
    accumulator._pending_batches.update(itertools.chain(*accumulator._batches.values()))
    for batch in list(accumulator._pending_batches):
        batch.done_noack()
    await producer.stop()
