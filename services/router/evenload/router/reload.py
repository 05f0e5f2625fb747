"""New settings for a running router: pools, instances, limits and keys, at SIGHUP and all at once.

All that can fail comes first; then everything is replaced in one synchronous step, so no request sees half of it.
Requests under way go on at the instances that they are at, also at those that are no longer in the file.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from evenload.api.keys import read_keys
from evenload.bus.topics import partition_for
from evenload.router.build import Router, admin_keys_of, admission_of, gate_of, limits_of, pools_of
from evenload.router.upstreams import upstreams as upstreams_of
from evenload.settings import PoolSettings, Settings
from evenload.settings.problems import EVERY, Problem, SettingsError
from evenload.settings.scoring import scoring_configs

# Of the sections that a router reads; the pools are all taken over.
_APPLIED = frozenset(
    {
        "max_body_bytes",
        "max_held_body_bytes",
        "instance_header",
        "keys_file",
        "admin_keys_file",
        "admission",
        "stale_view_ms",
    }
)
_SECTIONS = ("kafka", "router", "collector", "log")

log = logging.getLogger(__name__)


class Reloads:
    """Reloads when asked to, one after the other; what comes meanwhile is one more.

    Args:
        router: running.
        again: loads the settings from where they were loaded at start; may block.
        environ: where instances' keys are.
    """

    def __init__(self, router: Router, again: Callable[[], Settings], environ: dict[str, str]) -> None:
        self._router = router
        self._again = again
        self._environ = environ
        self._wanted = asyncio.Event()

    def request(self) -> None:
        """Reload soon; to be called in the event loop."""
        self._wanted.set()

    async def run(self) -> None:
        """Serve requests to reload, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._once()

    async def _once(self) -> None:
        metrics = self._router.metrics
        try:
            settings = await asyncio.to_thread(self._again)
            await asyncio.to_thread(self._router.means.prepare, settings)  # what would stop the event loop
            waiting: list[str] = []
            self._router.discovery.reconfigure(
                settings, lambda merged: waiting.extend(reload(self._router, merged, self._environ))
            )
        except SettingsError as error:
            for problem in error.problems:
                log.error("not reloaded, nothing has changed: %s", problem, extra=EVERY)
            metrics.reloaded(ok=False)
            return
        except Exception:
            log.exception("not reloaded: a fault of the router", extra=EVERY)
            metrics.reloaded(ok=False)
            return
        metrics.reloaded(ok=True)
        count = sum(len(pool.instances) for pool in self._router.settings.pools)
        log.info("reloaded: %d pools, %d instances", len(settings.pools), count)
        if waiting:
            log.warning("these have changed and need a restart: %s", ", ".join(waiting), extra=EVERY)


def reload(router: Router, settings: Settings, environ: dict[str, str]) -> list[str]:
    """Go over to new settings.

    Args:
        router: running.
        settings: checked.
        environ: where instances' keys are.

    Returns:
        The keys that differ and stay as they were until a restart.

    Raises:
        SettingsError: a pool, an instance's key or the file of client keys is bad; nothing has changed.
    """
    if not settings.pools:
        raise SettingsError([Problem("settings", "pools", "a router needs at least one pool of instances")])
    keys = None if settings.router.keys_file is None else read_keys(settings.router.keys_file)
    admin_keys = admin_keys_of(settings)
    differing = list(_needs_restart(router.settings, settings))
    adopt(router, settings, environ)

    if router.admin is not None:
        router.admin.keys = admin_keys
    proxy = router.asgi
    if keys is not None and proxy.keys is not None:
        keys.inherit(proxy.keys)
    proxy.keys = keys
    proxy.limits = limits_of(settings)
    proxy.names_instance = settings.router.instance_header
    proxy.bodies.bytes_max = settings.router.max_held_body_bytes
    bounds = admission_of(settings.router.admission)
    if proxy.gate is not None and bounds is not None:
        proxy.gate.bounds = bounds
    else:
        proxy.gate = gate_of(settings.router.admission)
    return differing


def adopt(router: Router, settings: Settings, environ: dict[str, str]) -> None:
    """Go over to the pools of these settings, with their instances.

    Clients of instances that are the same stay, with their warm connections.

    Raises:
        SettingsError: a pool or an instance's key is bad; nothing has changed.
    """
    pools = pools_of(settings, router.beginnings)
    configs = scoring_configs(settings)
    partitions = {name: partition_for(name.encode(), router.settings.kafka.partitions) for name in configs}
    before, after = _described(router.settings), _described(settings)
    same = {name for name, described in after.items() if before.get(name) == described}
    kept = {name: one for name, one in router.dispatcher.upstreams.items() if name in same}
    upstreams = upstreams_of(settings, environ, kept, router.means)
    router.dispatcher.reconfigure(pools, upstreams, configs, partitions)
    router.settings = settings


def _described(settings: Settings) -> dict[str, tuple[PoolSettings, object]]:
    """Return all that a client of an instance could depend on, by instance."""
    return {
        instance.id: (pool.model_copy(update={"instances": ()}), instance)
        for pool in settings.pools
        for instance in pool.instances
    }


def _needs_restart(old: Settings, new: Settings) -> Iterator[str]:
    for section in _SECTIONS:
        before, after = getattr(old, section), getattr(new, section)
        for key in type(before).model_fields:
            applied = section == "router" and key in _APPLIED
            if not applied and getattr(before, key) != getattr(after, key):
                yield f"{section}.{key}"
