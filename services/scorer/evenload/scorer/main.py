"""One scorer worker as a process: topics, Faust, timers, watchdog, signals, exit code."""

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path

from evenload.bus.access import AccessRefused, Address, cluster_of
from evenload.bus.logs import quieten
from evenload.bus.start import ensure_start
from evenload.bus.topics import BusUnavailable, TopicMismatch, TopicRefused, describe_topics
from evenload.scoring import digest
from evenload.settings import Settings
from evenload.settings.scoring import UNKNOWN, config_of, scoring_configs

with warnings.catch_warnings():  # Faust's imports warn of what only its authors can change
    warnings.simplefilter("ignore")
    from evenload.scorer.app import Fatal, ScorerApp
    from evenload.scorer.metrics import ScorerCollector, registry_of, render
    from evenload.scorer.table import StateTable
    from evenload.scorer.transport import QuickTransport
    from evenload.scorer.watchdog import Watchdog
    from evenload.scorer.web import serve

TICK_S = 0.1
LOOK_S = 2.0  # between two looks of the watchdog
STANDING_MS = 4_000.0  # after so long behind and without progress, Faust is told where the partition stands
ASK_S = 5.0  # for Kafka to answer it
FINISH_S = 5.0  # for a flush under way to end
LEAVE_S = 5.0  # for the last checkpoint
STOP_S = 5.0  # for Faust to stop
EXIT_S = 20.0  # for all of these
TEARDOWN_S = 1.0  # for what the client libraries leave running then

logger = logging.getLogger(__name__)


def run(settings: Settings) -> None:
    """Run a worker until SIGTERM or SIGINT.

    Raises:
        SettingsError: a pool's constants are outside the bounds of the scoring, or what Kafka wants to see is missing.
        SystemExit: with 1 when it could not start, or could not go on and should be started again.
    """
    brokers = cluster_of(settings.kafka, os.environ)
    if not logging.getLogger().handlers:
        logging.basicConfig(
            level=settings.log.level_number, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
        )
    quieten("aiokafka", "faust", "mode", "aiohttp", "asyncio", StateTable.__module__, QuickTransport.__module__)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    with tempfile.TemporaryDirectory(prefix="evenload-scorer-", ignore_cleanup_errors=True) as datadir:
        code = asyncio.run(_main(settings, brokers, Path(datadir)))
    if code:
        raise SystemExit(code)


async def _main(settings: Settings, brokers: Address, datadir: Path) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    code = 1
    try:
        await Worker(settings, brokers, datadir).run(stop)
        code = 0
    except (AccessRefused, BusUnavailable, TopicMismatch, TopicRefused, Fatal, OSError) as error:
        logger.error("%s", error)
    except Exception:
        logger.exception("the worker failed")
    _exit_later(code, TEARDOWN_S, datadir)
    return code


class Worker:
    """The parts of the process and their life."""

    def __init__(self, settings: Settings, brokers: Address, datadir: Path) -> None:
        self._settings = settings
        self._brokers = brokers
        name = f"{socket.gethostname()}-{settings.scorer.web_port}"
        self._app = ScorerApp(settings, self._brokers, config_of(settings), name, datadir)
        self._collector = ScorerCollector(self._app)
        # The group counts from the last heartbeat, which may be one interval before a standstill began.
        self._standstill_ms = (settings.scorer.session_timeout_s - settings.scorer.heartbeat_interval_s) * 1000.0
        self._state = "starting"
        self._alive_ms = _mono_ms()
        self._leaving = False
        self._datadir = datadir

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set.

        Raises:
            AccessRefused: Kafka does not let it in, or not do what it must.
            Fatal: the worker cannot go on.
            BusUnavailable, TopicMismatch, TopicRefused: the topics cannot be had.
            OSError: the web port is taken.
        """
        self._log_start()
        registry = registry_of(self._collector)
        own = self._settings.scorer
        web = await serve(own.host, own.web_port, self.unready, lambda: render(registry))
        try:
            if await _first(stop.wait(), self._ensure_topics()) == 0:
                return
            self._state = ""
            await self._work(stop)
        finally:
            await web.cleanup()

    def unready(self) -> str | None:
        """Return why the worker is not ready, or None."""
        if self._state:
            return self._state
        return None if self._app.recovered else "recovering"

    def _log_start(self) -> None:
        kafka, scorer = self._settings.kafka, self._settings.scorer
        digests = {digest(config) for config in scoring_configs(self._settings).values()} | {digest(UNKNOWN)}
        logger.info(
            "scorer starts: bootstrap %s, group %s, topics %s.*, %d partitions, scoring configs %s, port %d",
            kafka.bootstrap,
            scorer.app_id,
            kafka.topic_prefix,
            kafka.partitions,
            " ".join(sorted(digests)),
            scorer.web_port,
        )

    async def _ensure_topics(self) -> None:
        await ensure_start(self._brokers, "scorer", self._settings.kafka, group=self._settings.scorer.app_id)

    async def _work(self, stop: asyncio.Event) -> None:
        faust = self._app.faust
        starting = asyncio.create_task(faust.start())
        loops = [
            asyncio.create_task(self._every(self._settings.scorer.flush_ms / 1000, self._app.publish)),
            asyncio.create_task(self._every(TICK_S, self._app.checkpoint)),
            asyncio.create_task(self._every(TICK_S, self._app.settle)),
        ]
        self._alive_ms = _mono_ms()
        try:
            await _first(
                stop.wait(), self._app.failure(), self._crash(), self._tick(), self._watch(), _all(starting, *loops)
            )
            self._state = "leaving"
            _exit_later(0, EXIT_S, self._datadir)
            await self._leave(loops)
        finally:
            self._state = self._state or "ending"
            _exit_later(1, EXIT_S, self._datadir)
            await self._stop(starting, loops)

    # ---- what runs beside the agent

    async def _every(self, period_s: float, flush: Callable[[], Awaitable[None]]) -> None:
        while not self._leaving:
            start_s = time.monotonic()
            self._fence()
            if self._app.recovered:
                await flush()
            await asyncio.sleep(max(0.0, period_s - (time.monotonic() - start_s)))

    def _fence(self) -> None:
        """Refuse to write after a standstill in which the group may have given our partitions to others."""
        now_ms = _mono_ms()
        still_ms, self._alive_ms = now_ms - self._alive_ms, now_ms
        if still_ms >= self._standstill_ms:
            raise Fatal(f"the process stood still for {still_ms / 1000:.1f} s: others may own its partitions by now")

    async def _tick(self) -> None:
        while True:
            self._fence()
            await asyncio.sleep(TICK_S)

    async def _crash(self) -> None:
        """Wait until Faust ends by itself, which it should not; raises why."""
        faust = self._app.faust
        await faust.wait_until_stopped()
        raise Fatal(f"Faust ended: {faust.crash_reason!r}")

    async def _watch(self) -> None:
        watchdog = Watchdog(_mono_ms())
        while True:
            recovered, assigned = self._app.recovered, self._app.assigned
            behind = await self._behind() if recovered else None
            reason = watchdog.look(
                _mono_ms(),
                reachable=behind is not None or await self._reachable(),
                behind=behind,
                positions={partition: owned.scorer.position for partition, owned in assigned.items()},
                recovered=recovered and self._app.recovered,
                signs_of_life=self._app.table.records_read + self._app.activity.rebalances,
                reading=self._app.faust.tables.recovery.in_recovery,
            )
            if reason is not None:
                self._state = reason
                raise Fatal(reason)
            await self._app.find_place(watchdog.standing(_mono_ms(), STANDING_MS))
            await asyncio.sleep(LOOK_S)

    async def _behind(self) -> dict[int, int] | None:
        """Ask Kafka how many records of each partition wait; None when it does not answer."""
        places = {partition: self._app.place(partition) for partition in self._app.assigned}
        try:
            async with asyncio.timeout(ASK_S):
                ends = await self._app.faust.consumer.highwaters(*places.values())
                starts = await self._app.faust.consumer.earliest_offsets(*places.values())
        except Exception as error:  # whatever the client library raises while Kafka is away or partitions move
            logger.warning("Kafka did not say how far it is: %r", error)
            self._collector.lag = {}  # unknown, not what it was
            return None
        lag: dict[int, int] = {}
        for partition, owned in self._app.assigned.items():
            place = places.get(partition)
            if place in ends and place in starts:
                owned.scorer.skip_to(starts[place])
                lag[partition] = max(0, ends[place] - owned.scorer.position - 1)
        self._collector.lag = lag
        return lag

    async def _reachable(self) -> bool:
        """Ask with a client of its own, so that a Faust that hangs is told from a Kafka that is away."""
        try:
            await describe_topics(self._brokers, (), timeout_s=ASK_S)
        except BusUnavailable:
            return False
        return True

    # ---- the end

    async def _leave(self, loops: list["asyncio.Task[None]"]) -> None:
        self._leaving = True
        await asyncio.wait(loops, timeout=FINISH_S)
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._app.leave()
        except Exception as error:
            logger.warning("no last checkpoint, the next owner reads some records again: %r", error)

    async def _stop(self, starting: "asyncio.Task[None]", loops: list["asyncio.Task[None]"]) -> None:
        self._leaving = True
        threading.excepthook = _report_thread
        stopping = asyncio.create_task(self._app.faust.stop())
        done, _ = await asyncio.wait([stopping], timeout=STOP_S)
        if not done:
            logger.warning("Faust did not stop within %.0f s", STOP_S)
        for task in (stopping, starting, *loops):
            task.cancel()
        await asyncio.wait([stopping, starting, *loops], timeout=1.0)
        for task in (stopping, starting, *loops):
            if task.done() and not task.cancelled():
                task.exception()  # seen: the first failure has been reported already


async def _first(*works: Awaitable[object]) -> int:
    """Wait for the first of several to end, cancel the others, and return its index; raises what it raised."""
    tasks: list[asyncio.Future[object]] = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        return next(index for index, task in enumerate(tasks) if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _all(*tasks: "asyncio.Task[None]") -> None:
    """Wait for tasks that go on for ever; raises the first failure. Cancelling it does not cancel them."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


def _exit_later(code: int, after_s: float, datadir: Path) -> None:
    """End the process after a while, whatever still runs then; the earliest call counts."""

    def leave() -> None:
        shutil.rmtree(datadir, ignore_errors=True)
        os._exit(code)

    timer = threading.Timer(after_s, leave)
    timer.daemon = True
    timer.start()


def _report_thread(failure: threading.ExceptHookArgs) -> None:
    """Say in one line what a client thread died of while the worker ends; a traceback would look like a crash."""
    logger.warning("a client thread did not end well: %r", failure.exc_value)


def _mono_ms() -> float:
    return time.monotonic() * 1000
