"""A router as a balancer sees it."""

import asyncio
from dataclasses import dataclass, field

from evenload.router.fakes import post
from evenload.router.upstream import Upstream, UpstreamError
from evenload.settings import Settings

POLL_S = 0.1


@dataclass
class Replica:
    """One router, its readiness, and connections to it."""

    settings: Settings
    client: Upstream = field(init=False)
    ready: bool = False

    def __post_init__(self) -> None:
        self.client = Upstream(self.url)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.settings.router.port}"

    async def poll(self) -> None:
        """Ask for readiness for ever, as Kubernetes and HAProxy do."""
        while True:
            try:
                async with asyncio.timeout(1.0):
                    self.ready = (await post(self.url, b"", path="/readyz", method="GET")).status == 200
            except (TimeoutError, UpstreamError):
                self.ready = False
            await asyncio.sleep(POLL_S)
