"""From settings to a router that can run: the only place where its parts meet."""

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import FastAPI

from evenload.api.keys import ClientKeys, read_keys
from evenload.bus.access import cluster_of
from evenload.bus.emitter import Emitter
from evenload.bus.records import RecordSender
from evenload.bus.rights_watch import RightsWatch
from evenload.bus.snapshots import SnapshotReader
from evenload.bus.spool_metrics import SpoolMetrics
from evenload.bus.topics import partition_for, topic_names
from evenload.discovery.discovery import Discovery
from evenload.discovery.metrics import DiscoveryMetrics
from evenload.router.admin import Admin
from evenload.router.admission import Admission, Gate
from evenload.router.app import Lifespan, Part, create_app
from evenload.router.beginnings import Beginnings
from evenload.router.dispatcher import Dispatcher
from evenload.router.doors import App, Doors
from evenload.router.held_bodies import HeldBodies
from evenload.router.homes import Homes
from evenload.router.limits import Limits
from evenload.router.metrics import RouterMetrics
from evenload.router.outbox import Outbox
from evenload.router.pool import Place, Pool
from evenload.router.prefix_key import prefix_key
from evenload.router.proxy import Proxy
from evenload.router.telemetry import Telemetry
from evenload.router.upstreams import Means, upstreams
from evenload.routing import POLICIES, FleetView, LogClock
from evenload.routing.retry_budget import RetryBudget
from evenload.schemas import SnapshotBatch
from evenload.scoring import digest
from evenload.settings import AdmissionSettings, PoolSettings, RouterSettings, Settings
from evenload.settings.code import code_digest
from evenload.settings.scoring import pool_scoring, scoring_configs

DECISIONS_LINGER_MS = 200  # nobody waits for them, and each request to Kafka costs a millisecond or more

if TYPE_CHECKING:
    from evenload.router.tracing import Tracing


@dataclass(slots=True)
class Router:
    """A built router.

    Attributes:
        front: what a server runs.
        asgi: its data plane.
        telemetry: its background work; started and stopped by the application's lifespan.
        dispatcher: its heart, for tests and embedding.
        metrics: its metrics.
        settings: in force, with the instances that were discovered; `reload.py` changes them.
        discovery: finds those.
        beginnings: hashes how prompts begin; with the key of the start, whatever is reloaded.
        means: what clients of instances share.
        admin: what operators may do; always there, with or without keys for it.
        tracing: its spans, if any.
    """

    front: App
    asgi: Proxy
    telemetry: Telemetry
    dispatcher: Dispatcher
    metrics: RouterMetrics
    settings: Settings
    discovery: Discovery
    beginnings: Beginnings
    means: Means
    admin: Admin | None = None
    tracing: "Tracing | None" = None

    def leave(self) -> None:
        """Turn readiness off, and end each connection after its next answer; requests are still served."""
        self.telemetry.leave()
        self.asgi.leaving = True


def build(
    settings: Settings,
    environ: dict[str, str],
    wall_s: Callable[[], float] = time.time,
    tracing: "Tracing | None" = None,
) -> Router:
    """Build one router replica.

    Args:
        settings: all of them.
        environ: where instances' keys are.
        wall_s: the host's clock, asked once: log time is estimated from it until the first snapshot comes.
        tracing: of the requests; made as the settings say if not given.

    Raises:
        ModuleNotFoundError: spans are wanted, and the extra `otel` is not installed.
        SettingsError: an instance's key, its file of authorities or what Kafka wants to see is missing, a constant is
            out of bounds, or the file of client keys or of the prefixes' key is bad.
    """
    kafka, router, collector = settings.kafka, settings.router, settings.collector
    brokers = cluster_of(kafka, environ)
    admin_keys = admin_keys_of(settings)

    def follow(found: Settings) -> None:
        from evenload.router.reload import adopt  # which needs this module

        adopt(built, found, environ)

    discovery = Discovery(settings, follow, ready_only=True)
    settings = discovery.merged()
    configs = scoring_configs(settings)
    partitions = {name: partition_for(name.encode(), kafka.partitions) for name in configs}
    mono_ms = _monotonic_ms()
    wall_ms = int(wall_s() * 1000)

    def on_ack(partition: int, seq: int, offset: int, timestamp_ms: int) -> None:
        view.acknowledge(partition, seq, offset, timestamp_ms)

    emitter = Emitter(
        brokers,
        kafka.topic_prefix,
        router.name,
        partitions=kafka.partitions,
        linger_ms_min=collector.linger_ms_min,
        linger_ms_max=collector.linger_ms_max,
        buffer_events_max=collector.buffer_events_max,
        on_ack=on_ack,
        spool=settings.spool,
    )
    view = FleetView(configs, partitions, emitter.incarnation, wall_ms)
    decisions = RecordSender(
        emitter.link,
        topic_names(kafka.topic_prefix).decisions,
        partitions=kafka.partitions,
        linger_ms=DECISIONS_LINGER_MS,
    )
    outbox = Outbox(decisions.send)
    tracing = tracing or _tracing(router)
    client_keys = None if router.keys_file is None else read_keys(router.keys_file)
    beginnings = Beginnings(prefix_key(router.prefix_key_file))
    metrics = RouterMetrics()
    rights = RightsWatch(brokers, "router", kafka.topic_prefix)
    for source in (SpoolMetrics(emitter), rights, DiscoveryMetrics(lambda: discovery)):
        metrics.registry.register(source)
    means = Means().prepare(settings)
    dispatcher = Dispatcher(
        router=router.name,
        pools=pools_of(settings, beginnings),
        upstreams=upstreams(settings, environ, means=means),
        view=view,
        log_clock=LogClock(wall_ms, mono_ms),
        emitter=emitter,
        send_decision=outbox.add,
        watch=metrics,
        rng=random.Random(router.seed),
        clock=_monotonic_ms,
        code_digest=code_digest(),
    )

    def reader_of(on_batch: Callable[[int, int, SnapshotBatch], None]) -> SnapshotReader:
        return SnapshotReader(brokers, kafka.topic_prefix, kafka.partitions, on_batch)

    telemetry = Telemetry(dispatcher, emitter, decisions, reader_of, outbox, rights=rights)
    telemetry.awaits = lambda: discovery.waiting
    admin = Admin(dispatcher, discovery, admin_keys)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await telemetry.start()
        discovery.start()
        yield
        await discovery.close()
        await telemetry.stop()
        if tracing is not None:
            await tracing.close()
        for upstream in dispatcher.upstreams.values():
            upstream.close()

    metrics.watch_pools(lambda: proxy.gate, lambda: dispatcher.pools, lambda: proxy.bodies)

    def app_for(*serves: Part, lifespan: Lifespan | None = None) -> FastAPI:
        return create_app(
            dispatcher,
            telemetry,
            metrics,
            lambda: built.settings.router.stale_view_ms,
            lifespan,
            serves=serves,
            admin=admin,
        )

    apart = router.admin_listen is not None
    app = app_for("api", lifespan=lifespan) if apart else app_for("api", "pages", lifespan=lifespan)
    proxy = Proxy(
        app,
        dispatcher if tracing is None else tracing.dispatcher(dispatcher),
        limits_of(settings),
        gate=gate_of(router.admission),
        keys=client_keys,
        bodies=HeldBodies(router.max_held_body_bytes),
        names_instance=router.instance_header,
    )
    metrics.watch_keys(lambda: proxy.keys)
    front: App = proxy if tracing is None else tracing.front(proxy)
    if apart:
        front = Doors(front, app_for("pages"), router.admin_address[1], lambda: proxy.leaving)
    built = Router(front, proxy, telemetry, dispatcher, metrics, settings, discovery, beginnings, means, admin, tracing)
    return built


def _tracing(router: RouterSettings) -> "Tracing | None":
    if router.tracing == "off":
        return None
    from evenload.router.tracing import Tracing

    return Tracing(router.name)


def pools_of(settings: Settings, beginnings: Beginnings) -> dict[str, Pool]:
    """Make the pools, by name."""
    return {pool.name: _pool(pool, settings.router.max_body_bytes, beginnings) for pool in settings.pools}


def limits_of(settings: Settings) -> Limits:
    """Return the limits of requests that no pool serves."""
    return Limits(body_bytes_max=settings.router.max_body_bytes)


def _pool(pool: PoolSettings, body_bytes_max: int, beginnings: Beginnings) -> Pool:
    return Pool(
        name=pool.name,
        models=pool.models,
        policy=POLICIES[pool.policy](),
        instances=tuple(instance.id for instance in pool.instances),
        config_digest=digest(pool_scoring(pool)),
        renames=pool.response_model == "client",
        places={
            one.id: Place(one.weight, one.priority) for one in pool.instances if (one.weight, one.priority) != (1, 0)
        },
        spill_over_ms=pool.spill_over_ms,
        gate=gate_of(pool.admission),
        homes=_homes(pool, beginnings),
        retries=RetryBudget(pool.retries.share, pool.retries.per_s_min),
        limits=Limits(
            body_bytes_max=body_bytes_max,
            attempts_max=pool.retries.attempts_max,
            back_off_s=pool.retries.backoff_ms / 1000.0,
            back_off_s_max=pool.retries.backoff_ms_max / 1000.0,
            first_token_s=pool.timeouts.first_token_s,
            answer_s=pool.timeouts.answer_s,
            idle_s=pool.timeouts.idle_s,
        ),
    )


def _homes(pool: PoolSettings, beginnings: Beginnings) -> Homes | None:
    return Homes(beginnings, len(pool.instances), certain=bool(pool.prefix_affinity)) if pool.affine else None


def admin_keys_of(settings: Settings) -> ClientKeys | None:
    """Read the operators' keys, if there are to be any.

    Raises:
        SettingsError: the file is bad.
    """
    path = settings.router.admin_keys_file
    return None if path is None else read_keys(path, "router.admin_keys_file")


def admission_of(settings: AdmissionSettings) -> Admission | None:
    """Return the bounds of a gate; None for no bound."""
    if settings.max_concurrent is None:
        return None
    return Admission(settings.max_concurrent, settings.queue_max, settings.queue_deadline_ms / 1000.0)


def gate_of(settings: AdmissionSettings) -> Gate | None:
    """Make a gate; None for no bound."""
    bounds = admission_of(settings)
    return None if bounds is None else Gate(bounds)


def _monotonic_ms() -> float:
    return time.monotonic() * 1000.0
