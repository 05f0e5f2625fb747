"""Running one router replica: uvicorn round the built application."""

import asyncio
import contextlib
import gc
import logging
import math
import os
import resource
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from evenload.router.build import Router, build
from evenload.router.native import HttpProtocol
from evenload.router.reload import Reloads
from evenload.router.server_protocol import BoundedProtocol, bounded
from evenload.settings import Settings, SettingsError
from evenload.settings.problems import Problem

log = logging.getLogger(__name__)

BACKLOG = 2048
OPEN_FILES = 65_536


class _Server(uvicorn.Server):
    """Turns readiness off at the first signal, while open streams go on; ends by returning, not by the signal."""

    def __init__(self, config: uvicorn.Config, router: Router, reloads: Reloads | None) -> None:
        super().__init__(config)
        self._leave = router.leave
        self._announce_s = router.settings.router.announce_s
        self._reloads = reloads
        self.interrupted = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Leave; a second Ctrl-C does not wait for open streams."""
        log.info("signal %d: not ready any more; soon no new requests; open streams may finish", sig)
        self._leave()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        self.interrupted = self.interrupted or sig == signal.SIGINT

    async def main_loop(self) -> None:
        """Serve; after the signal go on until balancers have seen that the router is not ready."""
        loop = asyncio.get_running_loop()
        reloading = None
        if self._reloads is not None:
            reloading = loop.create_task(self._reloads.run())
            loop.add_signal_handler(signal.SIGHUP, self._reloads.request)
        await super().main_loop()
        if reloading is not None:
            loop.remove_signal_handler(signal.SIGHUP)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            reloading.cancel()
        until_s = loop.time() + self._announce_s
        while loop.time() < until_s and not self.interrupted:  # noqa: ASYNC110 - a signal handler may not set an event
            await asyncio.sleep(0.05)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the clients' door and drain; the admin port, which is the second, answers until that is over."""
        sockets = sockets or []
        admin, self.servers = self.servers[1:], self.servers[:1]
        try:
            await super().shutdown(sockets[:1])
        finally:
            for server in admin:
                server.close()
            for listener in sockets[1:]:
                listener.close()


def run(settings: Settings, again: Callable[[], Settings] | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C, `router.announce_s` longer after SIGTERM; then open streams get `drain_s`.

    Args:
        settings: all of them.
        again: loads them once more, for SIGHUP; without it SIGHUP is ignored.

    Raises:
        KeyboardInterrupt: it was ended by Ctrl-C, after everything was put in order.
        SettingsError: no pools, a missing key, or an address that cannot be listened on.
    """
    if not settings.pools:
        raise SettingsError([Problem("settings", "pools", "a router needs at least one pool of instances")])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # else one that comes too early ends the process
    environ = dict(os.environ)
    router = build(settings, environ)
    serve(router, Reloads(router, again, environ) if again else None)


def serve(router: Router, reloads: Reloads | None = None) -> None:
    """Serve a built router, for those who embed it; `run` is this with a router of its own.

    Args:
        router: built, and not served yet.
        reloads: what SIGHUP asks for.

    Raises:
        KeyboardInterrupt: it was ended by Ctrl-C, after everything was put in order.
        SettingsError: an address cannot be listened on.
    """
    settings = router.settings
    _raise_open_files()
    listeners = [_listen(settings.router.host, settings.router.port, "router.port")]
    if settings.router.admin_listen is not None:
        listeners.append(_listen(*settings.router.admin_address, "router.admin_listen"))
        log.info("admin: http://%s", settings.router.admin_listen)
    config = uvicorn.Config(
        router.front,
        interface="asgi3",
        loop="uvloop",
        http=bounded(
            HttpProtocol if settings.router.server == "native" else BoundedProtocol,
            settings.router.max_header_bytes,
            settings.router.max_url_bytes,
        ),
        proxy_headers=False,
        ws="none",  # its refusals log the query, which may have a key, once per attempt
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=math.ceil(settings.router.drain_s),
    )
    for pool in settings.pools:
        log.info("pool %s: %d instances, policy %s", pool.name, len(pool.instances), pool.policy)
    # Of two routers with one name, the incarnation tells who is who; the log keeps them apart by it.
    own, incarnation = settings.router, router.dispatcher.emitter.incarnation
    log.info("router %s, incarnation %x, listens on http://%s:%d", own.name, incarnation, own.host, own.port)
    _freeze()
    server = _Server(config, router, reloads)
    server.run(sockets=listeners)
    if server.interrupted:
        raise KeyboardInterrupt


def _freeze() -> None:
    """Take what start-up made out of the garbage collector's sight; full collections would stall streams for it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _raise_open_files() -> None:
    """Take as many open files as the system allows: a request needs two, and the usual 1,024 are soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a further limit, which it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _listen(host: str, port: int, key: str) -> socket.socket:
    """Open the listening socket before anything else starts, so that a taken port is one clear error."""
    try:
        return socket.create_server((host, port), backlog=BACKLOG, family=_family(host))
    except OSError as error:
        reason = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise SettingsError([Problem("settings", key, reason)]) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
