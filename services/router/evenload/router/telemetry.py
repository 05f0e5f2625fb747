"""The router's side of Kafka: what it sends, what it reads, and the ticker between. Nothing here may slow a request."""

import asyncio
from collections.abc import Callable

from evenload.bus.emitter import Emitter
from evenload.bus.forever import Forever
from evenload.bus.records import RecordSender
from evenload.bus.rights_watch import RightsWatch
from evenload.bus.snapshots import SnapshotReader
from evenload.router.dispatcher import Dispatcher
from evenload.router.outbox import Outbox
from evenload.schemas import SnapshotBatch

TICK_S = 0.05
DRAIN_S = 3.0

ReaderOf = Callable[[Callable[[int, int, SnapshotBatch], None]], SnapshotReader]


class Telemetry:
    """Starts and stops the background work of a router and knows whether it runs."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        emitter: Emitter,
        decisions: RecordSender,
        reader_of: ReaderOf,
        outbox: Outbox,
        *,
        rights: RightsWatch,
    ) -> None:
        self.rights = rights
        self._outbox = outbox
        self._dispatcher = dispatcher
        self._emitter = emitter
        self._decisions = decisions
        self._reader = reader_of(self._take)
        self._ticker: Forever | None = None
        self._leaving = False
        self.awaits: Callable[[], list[str]] = list  # what has to be known before requests can be served

    async def start(self) -> None:
        """Begin; Kafka need not be there."""
        self._emitter.start()
        self._decisions.start()
        self._reader.start()
        self.rights.start()
        self._ticker = Forever("ticker", self._tick)

    async def stop(self) -> None:
        """Send what there is, within some seconds, and go."""
        self._leaving = True
        if self._ticker is not None:
            await self._ticker.stop()
        self._dispatcher.tick()
        self._outbox.flush()
        await self.rights.close()
        await self._reader.close()
        await self._decisions.close(DRAIN_S)
        await self._emitter.close(DRAIN_S)

    def leave(self) -> None:
        """Say from now on that the router is not ready."""
        self._leaving = True

    def not_ready(self) -> list[str]:
        """Return why the router should get no new requests; empty when it should."""
        running = {
            "ticker": self._ticker is not None and self._ticker.alive,
            "emitter": self._emitter.alive,
            "snapshot reader": self._reader.alive,
        }
        reasons = [f"the {name} is not running" for name, alive in running.items() if not alive]
        reasons += [f"instances are not known yet: {source}" for source in self.awaits()]
        return ["the router is leaving", *reasons] if self._leaving else reasons

    def counts(self) -> dict[str, float]:
        """Return telemetry counters by name, for the metrics page."""
        emitter, view = self._emitter, self._dispatcher.view
        return {
            "events_sent": emitter.sent_events,
            "batches_sent": emitter.sent_batches,
            "events_buffered": emitter.buffered,
            "events_lost": emitter.lost_events,
            "oldest_unsent_ms": emitter.oldest_age_ms,
            "decisions_sent": self._decisions.sent,
            "decisions_lost": self._decisions.dropped,
            "tail_events_folded_into_base": view.folded_into_base,
            "older_snapshots_ignored": view.older_snapshots,
        }

    def _take(self, partition: int, offset: int, batch: SnapshotBatch) -> None:
        self._dispatcher.take_snapshots(offset, batch)
        self._emitter.advise(partition, batch.linger_ms)

    async def _tick(self) -> None:
        while True:
            self._dispatcher.tick()
            self._outbox.flush()
            await asyncio.sleep(TICK_S)
