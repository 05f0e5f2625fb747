"""Between memory and disk: batches that Kafka does not take go to the spool, and come back in order.

In a partition the spool always holds what is older than everything in memory, except what is being sent from memory at
that moment, which may be in both. So whoever sends takes from the spool as long as it has anything (`waiting`), then
from memory. All file work happens in one thread of its own: a slow disk delays telemetry, never the event loop; a full
or broken one leaves batches in memory, whose bound then counts what is lost.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from evenload.bus.client_logs import limited_logger
from evenload.bus.forever import Forever
from evenload.bus.lane import GROUP_BYTES_MAX, Lane, Pending
from evenload.bus.spool.cursor import Position
from evenload.bus.spool.entry import Entry, Stored
from evenload.bus.spool.folder import SpoolFolder
from evenload.settings.spool import SpoolSettings

log = limited_logger(__name__)

TICK_S = 0.25
OPEN_S = 10.0  # the longest that sending waits to know what an earlier process left
_RETRY_S = 10.0  # to open a folder that could not be used
_SYNC_S = 1.0
_FULL_S = 1.0  # before the next try when nothing could be written
_MOVE_BYTES_MAX = 2 * 1024 * 1024  # of memory to disk in one go
_CLOSE_S = 10.0

_T = TypeVar("_T")
Times = Callable[[], tuple[float, float]]  # the host's clock and the monotonic one, in milliseconds


class Overflow:
    """The spool of an emitter, on its event loop.

    Attributes:
        ready: set when it is known what the disk has, or that it cannot be known for now.
        folder: the files.
        stored_events: written to disk since the start.
    """

    def __init__(
        self,
        folder: SpoolFolder,
        lanes: Sequence[Lane],
        settings: SpoolSettings,
        *,
        encoded: Callable[[Pending], bytes],
        times: Times,
        on_stored: Callable[[Lane, int], None],
    ) -> None:
        """Describe it; `start` begins.

        Args:
            folder: where batches go.
            lanes: where they come from, by partition.
            settings: how fast and how soon.
            encoded: makes the record of a batch, without an age.
            times: both clocks.
            on_stored: called with a lane and how many of its events need no memory any more.
        """
        self.ready = asyncio.Event()
        self.folder = folder
        self.stored_events = 0
        self._lanes = lanes
        self._settings = settings
        self._encoded = encoded
        self._times = times
        self._on_stored = on_stored
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self._waiting: frozenset[int] = frozenset()
        self._next_open_s = self._next_move_s = self._next_sync_s = self._next_read_s = 0.0
        self._work: Forever | None = None
        self._moving = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Overflow {self.folder}>"

    @property
    def alive(self) -> bool:
        """Whether it is at work."""
        return self._work is not None and self._work.alive

    @property
    def oldest_ms(self) -> float:
        """Age of the oldest batch on disk; 0 if there is none."""
        oldest = self.folder.figures.oldest
        return 0.0 if oldest is None else oldest.age_ms(*self._times())

    def start(self) -> None:
        """Begin, on the running loop."""
        asyncio.get_running_loop().call_later(OPEN_S, self.ready.set)
        self._work = Forever("spool", self._run)

    def waiting(self, lane: Lane) -> bool:
        """Tell whether the lane has older batches on disk than in memory."""
        return lane.partition in self._waiting

    async def read(self, lane: Lane) -> list[Stored]:
        """Return the oldest batches of a lane, no faster than the settings say; none if they cannot be read."""
        found = await self._call(self.folder.read, lane.partition, GROUP_BYTES_MAX)
        now_s = asyncio.get_running_loop().time()
        begin_s = max(now_s, self._next_read_s)
        self._next_read_s = begin_s + sum(one.entry.events for one in found) / self._settings.drain_events_per_s
        await asyncio.sleep(begin_s - now_s)
        return found

    async def acknowledge(self, lane: Lane, position: Position, records: int, events: int) -> None:
        """Forget what Kafka has: so many batches and events, up to `position`."""
        if records:
            await self._call(self.folder.acknowledge, lane.partition, position, records, events)

    async def close(self) -> None:
        """Put on disk all that is in memory, and let go of it. The senders must have stopped."""
        try:
            async with asyncio.timeout(_CLOSE_S), self._moving:
                if self._work is not None:
                    await self._work.stop()
                for lane in self._lanes:
                    lane.release()
                    lane.close_open()
                if not self.folder.is_open:  # whoever had it may have gone
                    await self._open()
                while self.folder.is_open and await self._move(everything=True):
                    pass
                await self._call(self.folder.close)
        except TimeoutError:
            log.error("spool: %s did not take what was in memory within %.0f s", self.folder.path, _CLOSE_S)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self.folder.is_open and loop.time() >= self._next_open_s:
                await self._open()
                self._next_open_s = loop.time() + _RETRY_S
            self.ready.set()
            if self.folder.is_open:
                if loop.time() >= self._next_move_s:
                    async with self._moving:
                        await self._move()
                if self._settings.fsync == "interval" and loop.time() >= self._next_sync_s:
                    self._next_sync_s = loop.time() + _SYNC_S
                    await self._call(self.folder.sync)
            await asyncio.sleep(TICK_S)

    async def _open(self) -> None:
        try:
            await self._call(self.folder.open)
        except OSError as error:
            log.warning("no spool: cannot use %s: %s", self.folder.path, error.strerror or error)
            return
        figures = self.folder.figures
        if figures.records:
            log.info(
                "spool: %s has %d events in %d batches from before, to be sent first",
                self.folder.path,
                figures.events,
                figures.records,
            )
        for lane in self._lanes:
            self._on_stored(lane, 0)

    async def _move(self, everything: bool = False) -> bool:
        """Bring to disk what waits for too long; tells whether anything was."""
        before_s = self._times()[1] / 1000 - (0 if everything else self._settings.after_ms / 1000)
        room = _MOVE_BYTES_MAX
        batches: dict[int, list[Pending]] = {}
        for lane in self._lanes:
            for batch in lane.late(before_s):
                room -= batch.size
                if room < 0:
                    break
                batches.setdefault(lane.partition, []).append(batch)
        if not batches:
            return False
        wall_ms, mono_ms = self._times()
        entries = {
            partition: [self._entry(batch, wall_ms, mono_ms) for batch in some] for partition, some in batches.items()
        }
        written = await self._call(self.folder.append, entries)
        done = [self._settle(self._lanes[one], batches[one], positions) for one, positions in written.items()]
        if sum(map(len, written.values())) < sum(map(len, batches.values())):
            self._next_move_s = asyncio.get_running_loop().time() + _FULL_S
            log.warning("spool: %s takes no more, %d bytes are there", self.folder.path, self.folder.figures.bytes)
        # All at once and before anything else: whoever sends counts on that order.
        await self._call(self._forget, [args for args in done if args[2]])
        return any(written.values())

    def _forget(self, acked: Sequence[tuple[int, Position, int, int]]) -> None:
        for args in acked:
            self.folder.acknowledge(*args)

    def _entry(self, batch: Pending, wall_ms: float, mono_ms: float) -> Entry:
        opened_ms = batch.opened_s * 1000
        return Entry(int(wall_ms - (mono_ms - opened_ms)), int(opened_ms), len(batch.events), self._encoded(batch))

    def _settle(
        self, lane: Lane, batches: Sequence[Pending], positions: Sequence[Position]
    ) -> tuple[int, Position, int, int]:
        """Note what is on disk now; returns what Kafka took while it was written, as for `folder.acknowledge`."""
        moved = list(zip(batches, positions, strict=False))
        self.stored_events += sum(len(batch.events) for batch, _ in moved)
        acked = [(batch, position) for batch, position in moved if batch.seq < lane.acked]
        self._on_stored(lane, lane.stored(moved[len(acked) :]))
        events = sum(len(batch.events) for batch, _ in acked)
        return lane.partition, acked[-1][1] if acked else (0, 0), len(acked), events

    async def _call(self, work: Callable[..., _T], *args: object) -> _T:
        """Do file work in the thread. What it leaves in the spool is known here in the order of the calls."""

        def job() -> tuple[_T, frozenset[int]]:
            result = work(*args)
            return result, self.folder.figures.waiting

        result, self._waiting = await asyncio.get_running_loop().run_in_executor(self._thread, job)
        return result
