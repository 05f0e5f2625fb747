"""Records that are worth having and not worth waiting for: decisions, dead letters.

Bounded and best effort: `send` never blocks; when the buffer is full the newest record is dropped and counted. After a
failure a record can be in the log twice.
"""

import asyncio
import contextlib
from collections import deque
from typing import Self
from zlib import crc32

from evenload.bus.client_logs import limited_logger
from evenload.bus.forever import Forever
from evenload.bus.link import GROUP_BYTES_MAX, ProducerLink, Record

log = limited_logger(__name__)

RECORD_BYTES_MAX = GROUP_BYTES_MAX - 1024  # less what Kafka puts around it
_GROUP_RECORDS_MAX = 500


class RecordSender:
    """Sends keyed records to one topic.

    Attributes:
        sent: acknowledged by Kafka.
        dropped: not taken because the buffer was full or the sender closed.
        too_large: not taken because of their size.
    """

    def __init__(
        self,
        link: ProducerLink,
        topic: str,
        *,
        partitions: int,
        linger_ms: int = 50,
        buffer_records_max: int = 20_000,
        buffer_bytes_max: int = 64 * 1024 * 1024,
    ) -> None:
        """Describe a sender; `start` lets it send, and records may be given before.

        Args:
            link: The connection, as a rule the emitter's.
            topic: Full name.
            partitions: Of the topic; records of one key share one.
            linger_ms: How long the first record of a group waits for others.
            buffer_records_max: Records kept for Kafka.
            buffer_bytes_max: Bytes kept for Kafka.
        """
        self.sent = self.dropped = self.too_large = 0
        self._link = link
        self._topic = topic
        self._linger_s = linger_ms / 1000
        self._records_max = buffer_records_max
        self._bytes_max = buffer_bytes_max
        self._queues: list[deque[Record]] = [deque() for _ in range(partitions)]
        self._buffered = self._bytes = 0
        self._some = asyncio.Event()
        self._progress = asyncio.Event()
        self._sender: Forever | None = None
        self._hurry = asyncio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<RecordSender {self._topic} buffered={self._buffered} sent={self.sent} dropped={self.dropped}>"

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def buffered(self) -> int:
        """Records that are not acknowledged yet."""
        return self._buffered

    @property
    def alive(self) -> bool:
        """Whether it is at work, with or without Kafka."""
        return self._sender is not None and self._sender.alive

    def start(self) -> None:
        """Begin to send, on the running loop. Kafka need not be there."""
        if self._sender is None and not self._closed:
            self._sender = Forever(f"records {self._topic}", self._run)

    def send(self, key: bytes, value: bytes) -> bool:
        """Take a record; tells whether it was taken."""
        size = len(key) + len(value)
        if size > RECORD_BYTES_MAX:
            self.too_large += 1
            log.warning("record of %d bytes for %s is too large", size, self._topic)
            return False
        if self._closed or self._buffered >= self._records_max or self._bytes + size > self._bytes_max:
            self.dropped += 1
            return False
        self._queues[crc32(key) % len(self._queues)].append((key, value))  # murmur2 in Python takes 6 us
        self._buffered += 1
        self._bytes += size
        self._some.set()
        return True

    async def flush(self, timeout_s: float = 5.0) -> bool:
        """Send what is there without waiting for others; tells whether Kafka has all of it."""
        self._hurry.set()
        try:
            async with asyncio.timeout(timeout_s):
                while self._buffered:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return False
        finally:
            self._hurry.clear()
        return True

    async def close(self, timeout_s: float = 2.0) -> bool:
        """Flush and stop; the link stays. Records that Kafka did not take are dropped and counted."""
        self._closed = True
        complete = not self._buffered or (self._sender is not None and await self.flush(timeout_s))
        if self._sender is not None:
            await self._sender.stop()
        if self._buffered:
            log.warning("%d records for %s were not delivered in time and are lost", self._buffered, self._topic)
        self.dropped += self._buffered
        self._buffered = self._bytes = 0
        return complete

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self._linger_s)
            async with asyncio.TaskGroup() as group:
                for partition, queue in enumerate(self._queues):
                    if queue:
                        group.create_task(self._deliver(partition, queue))
            if not self._buffered:
                self._some.clear()

    async def _deliver(self, partition: int, queue: deque[Record]) -> None:
        group: list[Record] = []
        size = 0
        for key, value in queue:
            size += len(key or b"") + len(value) + 64
            if group and (size > GROUP_BYTES_MAX or len(group) >= _GROUP_RECORDS_MAX):
                break
            group.append((key, value))
        receipt = await self._link.produce(self._topic, partition, lambda: group)
        for _ in range(receipt.written):
            key, value = queue.popleft()
            self._buffered -= 1
            self._bytes -= len(key or b"") + len(value)
        self.sent += receipt.written
        self._progress.set()
