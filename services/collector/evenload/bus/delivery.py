"""From a lane to Kafka: the oldest batches first, from disk as long as it has any, then from memory."""

from collections.abc import Callable, Sequence

from evenload.bus.client_logs import limited_logger
from evenload.bus.lane import Lane, Pending
from evenload.bus.link import ProducerLink, Receipt, Record
from evenload.bus.overflow import Overflow, Times
from evenload.bus.spool.entry import Stored

log = limited_logger(__name__)

OnAck = Callable[[int, int, int, int], None]


class Delivery:
    """Sends groups of batches, one at a time per lane.

    Attributes:
        sent_batches, sent_events: acknowledged by Kafka, whoever observed them.
    """

    def __init__(
        self,
        link: ProducerLink,
        topic: str,
        *,
        producer: tuple[str, int],
        times: Times,
        overflow: Overflow | None,
        on_ack: OnAck | None,
        on_sent: Callable[[int], None],
    ) -> None:
        """Describe it.

        Args:
            link: the connection.
            topic: of telemetry.
            producer: name and incarnation.
            times: both clocks.
            overflow: the spool, if there is one.
            on_ack: see `Emitter`.
            on_sent: called with the number of events that need no memory any more.
        """
        self.sent_batches = self.sent_events = 0
        self._link = link
        self._topic = topic
        self._producer = producer
        self._times = times
        self._overflow = overflow
        self._on_ack = on_ack
        self._on_sent = on_sent

    async def deliver(self, lane: Lane) -> bool:
        """Send the oldest group of a lane, until Kafka has at least a part; tells whether there was anything."""
        lane.release()
        if self._overflow is not None and self._overflow.waiting(lane):
            await self._stored(lane, self._overflow, await self._overflow.read(lane))
            return True
        group = lane.group()
        if group:
            await self._memory(lane, group)
        return bool(group)

    async def _memory(self, lane: Lane, group: Sequence[Pending]) -> None:
        def records() -> list[Record]:
            now_s = self._times()[1] / 1000
            return [(None, batch.encoded(*self._producer, now_s)) for batch in group]

        receipt = await self._link.produce(self._topic, lane.partition, records)
        acked = lane.acknowledge(receipt.written)
        self._note(lane, receipt, [batch.seq for batch in group], acked.events + acked.stored_events)
        self._on_sent(acked.events)
        if self._overflow is not None:
            await self._overflow.acknowledge(lane, acked.position, acked.stored_records, acked.stored_events)

    async def _stored(self, lane: Lane, overflow: Overflow, group: Sequence[Stored]) -> None:
        """Send what was on disk, of this process or of one before it."""
        if not group:
            return

        def records() -> list[Record]:
            times = self._times()
            return [(None, one.encoded(*times)) for one in group]

        receipt = await self._link.produce(self._topic, lane.partition, records)
        written = group[: receipt.written]
        events = sum(one.entry.events for one in written)
        own = [one.batch.seq if one.batch.incarnation == self._producer[1] else None for one in written]
        lane.acked = max([lane.acked, *(seq + 1 for seq in own if seq is not None)])
        self._note(lane, receipt, own, events)
        self._on_sent(0)
        await overflow.acknowledge(lane, (written[-1].segment, written[-1].end), len(written), events)

    def _note(self, lane: Lane, receipt: Receipt, seqs: Sequence[int | None], events: int) -> None:
        """Count what Kafka took, and tell where own batches are; `seqs` are those of the records, None for others."""
        self.sent_events += events
        self.sent_batches += receipt.written
        if receipt.offset >= 0 and self._on_ack is not None:
            for index, seq in enumerate(seqs[: receipt.written]):
                if seq is not None:
                    self._tell(self._on_ack, lane.partition, seq, receipt.offset + index, receipt.timestamp_ms)

    def _tell(self, on_ack: OnAck, partition: int, seq: int, offset: int, timestamp_ms: int) -> None:
        try:
            on_ack(partition, seq, offset, timestamp_ms)
        except Exception:  # not ours to judge, and the batch is in the log
            log.exception("the callback for acknowledged batches failed")
