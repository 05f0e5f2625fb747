"""The collector process: polls all instances, publishes what they say, and shows how that goes."""

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from evenload.api.keys import read_keys
from evenload.bus.access import cluster_of
from evenload.bus.emitter import Emitter
from evenload.bus.forever import Forever
from evenload.bus.rights_watch import RightsWatch
from evenload.bus.snapshots import SnapshotReader
from evenload.bus.spool_metrics import SpoolMetrics
from evenload.bus.start import ensure_start
from evenload.bus.topics import BusUnavailable, partition_for, topic_names
from evenload.collector.access import access_of
from evenload.collector.ingest import Ingest
from evenload.collector.metrics import CollectorMetrics
from evenload.collector.peers import Peers
from evenload.collector.poller import Poller
from evenload.collector.probes import ProbeServer, Reply
from evenload.collector.roster import Roster
from evenload.collector.standing import Standing
from evenload.collector.watch import Watch
from evenload.discovery.discovery import Discovery
from evenload.discovery.metrics import DiscoveryMetrics
from evenload.routing.log_clock import LogClock
from evenload.schemas import Event, SnapshotBatch
from evenload.settings import InstanceSettings, PoolSettings, Settings, SettingsError
from evenload.settings.base import host_and_port
from evenload.settings.problems import EVERY, Problem

if TYPE_CHECKING:
    from evenload.collector.otlp import Places

log = logging.getLogger(__name__)

UNSENT_MS_MAX = 10_000  # beyond it events only count, so the fleet is no longer seen
_FLUSH_S = 5.0
_REPORTERS = "collector.ingest.keys_file"
_TICK_S = 1.0
_TOPICS_S = 10.0


def run(settings: Settings, again: Callable[[], Settings] | None = None) -> None:
    """Poll and publish until SIGTERM or Ctrl-C, then flush and return.

    Args:
        settings: all of them.
        again: loads them once more, for SIGHUP, which takes over the pools; without it SIGHUP is ignored.

    Raises:
        SettingsError: there is nothing to watch, it is none of its peers, or the metrics port cannot be had.
        AccessRefused: Kafka does not let it in, or not do what it must.
        TopicMismatch, TopicRefused: Kafka's topics are not as the settings say.
    """
    if not settings.pools:
        raise SettingsError([Problem("settings", "pools", "a collector needs at least one pool of instances")])
    own = settings.collector
    if own.peers and own.advertise not in own.peers:  # for this process only: others may share the file
        raise SettingsError([Problem("settings", "collector.advertise", "must be one of collector.peers")])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # else one that comes too early ends the process
    asyncio.run(_until_signal(settings, again))


async def _until_signal(settings: Settings, again: Callable[[], Settings] | None) -> None:
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    collector = Collector(settings)
    reloading = None
    if again is not None:
        loop.add_signal_handler(signal.SIGHUP, reload.set)
        reloading = loop.create_task(_reload(collector, again, reload))
    try:
        await collector.run(stop)
    finally:
        if reloading is not None:
            loop.remove_signal_handler(signal.SIGHUP)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            reloading.cancel()


async def _reload(collector: "Collector", again: Callable[[], Settings], wanted: asyncio.Event) -> None:
    while True:
        await wanted.wait()
        wanted.clear()
        try:
            collector.reload(await asyncio.to_thread(again))
        except SettingsError as error:
            for problem in error.problems:
                log.error("not reloaded, nothing has changed: %s", problem, extra=EVERY)
        except Exception:
            log.exception("not reloaded: a fault of the collector", extra=EVERY)


class Collector:
    """Everything that runs in the process.

    Attributes:
        emitter: where events go.
        ingest: takes the telemetry of others; None if nobody may report.
        peers: the other collectors, which share the instances.
        discovery: says who the instances are.
        roster: one poller per instance whose kind has a metrics page.
        rights: whether Kafka still lets it do all that it must.
        standing: who belongs to the fleet, told to the log.
        probes: the pages on `collector.metrics_port`; its port is known once `run` has begun.
    """

    def __init__(self, settings: Settings) -> None:
        """Build it; nothing runs before `run`.

        Raises:
            ModuleNotFoundError: spans are wanted, and the extra `otel` is not installed.
            SettingsError: what Kafka wants to see cannot be had, or the file of reporters' keys is bad.
        """
        kafka, own = settings.kafka, settings.collector
        self._brokers = cluster_of(kafka, os.environ)
        self._settings = settings
        self.emitter = Emitter(
            self._brokers,
            kafka.topic_prefix,
            own.name,
            partitions=kafka.partitions,
            linger_ms_min=own.linger_ms_min,
            linger_ms_max=own.linger_ms_max,
            buffer_events_max=own.buffer_events_max,
            spool=settings.spool,
        )
        self._reader = SnapshotReader(self._brokers, kafka.topic_prefix, kafka.partitions, self._take)
        self.rights = RightsWatch(self._brokers, "collector", kafka.topic_prefix)
        self._clock = LogClock(time.time_ns() // 1_000_000, _mono_ms())  # the host's clock until a snapshot comes
        self.peers = Peers(own.advertise or own.name, own.peers)
        self.roster = Roster(self._poller, own.poll_ms / 1000)
        self.standing = Standing(
            kafka.partitions, settings.discovery.leave_s_max * 1000, self.peers.owns, self._emit_as_is
        )
        self.discovery = Discovery(settings, self._follow)
        self.ingest = self._ingest(settings) if own.ingest.listen else None
        self._follow(self.discovery.merged())
        self._ticker: Forever | None = None
        self._registry = CollectorRegistry()
        self._registry.register(SpoolMetrics(self.emitter))
        self._registry.register(self.rights)
        self._registry.register(CollectorMetrics(lambda: self.pollers, self.emitter, self.peers, lambda: self.ingest))
        self._registry.register(DiscoveryMetrics(lambda: self.discovery))
        self.probes = ProbeServer(
            own.host,
            own.metrics_port,
            {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics},
        )

    @property
    def pollers(self) -> list[Poller]:
        """Those of now."""
        return list(self.roster.pollers.values())

    def reload(self, settings: Settings) -> None:
        """Take over the pools of other settings, how they are discovered, and the keys of who may report.

        Raises:
            SettingsError: they cannot be; nothing has changed.
        """
        if not settings.pools:
            raise SettingsError([Problem("settings", "pools", "a collector needs at least one pool of instances")])
        keys_file = settings.collector.ingest.keys_file
        keys = read_keys(keys_file, _REPORTERS) if self.ingest is not None and keys_file is not None else None
        self.discovery.reconfigure(settings)
        if self.ingest is not None and keys is not None:
            self.ingest.admit_by(keys)
        log.info("reloaded: %d pools", len(settings.pools))

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then flush."""
        await self._listen()
        door = await self._open()
        topics = asyncio.create_task(self._ensure_topics())
        stopped = asyncio.create_task(stop.wait())
        try:
            self._start()
            await asyncio.wait({topics, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if topics.done():
                topics.result()
                self.rights.start()
            await stopped
        finally:
            for task in (topics, stopped):
                task.cancel()
            if door is not None:
                await door.cleanup()
            await self._leave()

    def _start(self) -> None:
        self.emitter.start()
        self._reader.start()
        self.peers.start()
        self.roster.start()
        self.discovery.start()
        self._ticker = Forever("membership", self._tick)

    async def _leave(self) -> None:
        await self.rights.close()
        await self.discovery.close()
        if self._ticker is not None:
            await self._ticker.stop()
        await self.roster.close()
        await self.peers.close()
        await self._reader.close()
        if not await self.emitter.close(_FLUSH_S):
            log.warning("left with telemetry undelivered")
        await self.probes.close()

    async def _listen(self) -> None:
        try:
            await self.probes.start()
        except OSError as error:
            reason = f"cannot listen on {self.probes.host}:{self.probes.port}: {error.strerror or error}"
            raise SettingsError([Problem("settings", "collector.metrics_port", reason)]) from error

    def _ingest(self, settings: Settings) -> Ingest:
        kafka, own = settings.kafka, settings.collector.ingest
        telemetry = topic_names(kafka.topic_prefix).telemetry
        assert own.keys_file is not None  # the settings hold this
        return Ingest(
            own,
            read_keys(own.keys_file, _REPORTERS),
            write=partial(self.emitter.link.produce, telemetry),
            now_ms=lambda: self._clock.now_ms(_mono_ms()),
            generation_of=self.standing.generation,
            partition_of=lambda instance: partition_for(instance.encode(), kafka.partitions),
            places_of=_places_of() if own.traces == "otlp" else None,
        )

    async def _open(self) -> web.ServerRunner | None:
        """Listen for reports, if the settings say where."""
        listen = self._settings.collector.ingest.listen
        if self.ingest is None or listen is None:
            return None
        host, port = host_and_port(listen)
        runner = web.ServerRunner(self.ingest.door())
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            await self.probes.close()
            reason = f"cannot listen on {listen}: {error.strerror or error}"
            raise SettingsError([Problem("settings", "collector.ingest.listen", reason)]) from error
        log.info("taking reports at http://%s/v1/telemetry", listen)
        return runner

    async def _ensure_topics(self) -> None:
        """Make or check the topics; Kafka may come later, topics that are not as they should be end the process."""
        while True:
            try:
                return await ensure_start(self._brokers, "collector", self._settings.kafka, timeout_s=_TOPICS_S)
            except BusUnavailable as error:
                log.warning("waiting for Kafka: %s", error)

    async def _tick(self) -> None:
        while True:
            self.standing.tick(_mono_ms())
            await asyncio.sleep(_TICK_S)

    def _follow(self, settings: Settings) -> None:
        """Go over to the instances of these settings: the log hears of them before it hears from them."""
        poll = self.roster.prepare(settings)
        self.standing.want(settings, self.discovery.marks(), _mono_ms())
        poll()
        if self.ingest is not None:
            self.ingest.follow([instance for pool in settings.pools for instance in pool.instances])
        count = sum(len(pool.instances) for pool in settings.pools)
        log.info("polling %d of %d instances", len(self.roster.pollers), count)

    def _poller(self, instance: InstanceSettings, pool: PoolSettings) -> Poller:
        own = self._settings.collector
        return Poller(
            Watch(instance.id, own.poll_ms, own.stall_s * 1000),
            instance.url,
            own.timeout_s,
            self._emit,
            kind=instance.kind,
            metrics_url=instance.metrics_url,
            models=_served_names(instance, pool.models),
            owned=partial(self.peers.owns, instance.id),
            access=access_of(instance, os.environ),
        )

    def _emit(self, event: Event) -> None:
        generation = self.standing.generation(event.instance)
        self._emit_as_is(replace(event, gen=generation) if generation else event)

    def _emit_as_is(self, event: Event) -> None:
        self.emitter.add(event, self._clock.now_ms(_mono_ms()))

    def _take(self, partition: int, _offset: int, batch: SnapshotBatch) -> None:
        """Learn the log's clock and the advised linger, and what the scorer believes of our instances."""
        now_ms = _mono_ms()
        self._clock.anchor(batch.now_ms, now_ms)
        self.emitter.advise(partition, batch.linger_ms)
        self.standing.on_batch(batch, now_ms)
        for snapshot in batch.snapshots:
            poller = self.roster.pollers.get(snapshot.state.instance)
            if poller is not None and self.standing.is_current(snapshot.state):
                poller.on_snapshot(snapshot.state)

    def _not_ready(self) -> list[str]:
        """Return what does not work; empty when all does."""
        tasks = [*self.roster.tasks.values(), *self.discovery.tasks, *self.peers.tasks]
        if self._ticker is not None:
            tasks.append(self._ticker)
        problems = [f"{task.name} is not running" for task in tasks if not task.alive]
        if not self.emitter.alive:
            problems.append("the emitter is not running")
        if not self._reader.alive:
            problems.append("the snapshot reader is not running")
        if not self.emitter.link.connected:
            problems.append("no connection to Kafka")
        elif self.emitter.oldest_age_ms > UNSENT_MS_MAX:
            problems.append("Kafka does not take telemetry")
        return problems

    def _healthz(self) -> Reply:
        return Reply(200, "text/plain", b"ok\n")

    def _readyz(self) -> Reply:
        problems = self._not_ready()
        page = {"ready": not problems, "problems": problems, "kafka_refuses": self.rights.lacking}
        body = json.dumps(page).encode()
        return Reply(503 if problems else 200, "application/json", body)

    def _metrics(self) -> Reply:
        return Reply(200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry))


def _served_names(instance: InstanceSettings, models: tuple[str, ...]) -> tuple[str, ...]:
    """What the instance calls the models of its pool; empty when it may serve any."""
    names = instance.model_names
    return () if "*" in models else tuple(names.get(model) or names.get("*") or model for model in models)


def _places_of() -> "Callable[[Iterable[InstanceSettings]], Places]":
    from evenload.collector.otlp import Places

    return Places


def _mono_ms() -> float:
    return time.monotonic() * 1000
