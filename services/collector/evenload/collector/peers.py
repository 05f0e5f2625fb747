"""Which collectors are alive: each asks the others' `/readyz`, twice a second.

One that is not ready, for instance because it has lost Kafka, counts as gone: nobody hears what it polls. If none hears
Kafka each believes to be alone and polls everything, which costs CPU and loses nothing.
"""

import asyncio
import time
from collections.abc import Iterable
from functools import partial

from evenload.bus.client_logs import limited_logger
from evenload.bus.forever import Forever
from evenload.collector.http_get import GetError, HttpGetter
from evenload.collector.share import owner

log = limited_logger(__name__)

ASK_EVERY_S = 0.5
ANSWER_S = 1.0
SILENT_S = 2.0  # with the asking and the next poll: another one has taken over within 3 s


class Peers:
    """This collector among its peers.

    Attributes:
        me: its own address.
        tasks: those that ask, while it runs.
    """

    def __init__(self, me: str, everybody: Iterable[str]) -> None:
        """Take the own address and all addresses, the own included or not."""
        self.me = me
        self.tasks: list[Forever] = []
        self._others = sorted(set(everybody) - {me})
        self._heard_s: dict[str, float] = {}
        self._live = frozenset({me})
        self._owned: dict[str, bool] = {}

    def __repr__(self) -> str:
        return f"<Peers {self.me} live={sorted(self.live)}>"

    @property
    def live(self) -> frozenset[str]:
        """Those alive, this one always included."""
        now_s = time.monotonic()
        heard = (peer for peer, at_s in self._heard_s.items() if now_s - at_s < SILENT_S)
        return frozenset({self.me, *heard})

    def owns(self, instance: str) -> bool:
        """Tell whether it is this collector that polls the instance."""
        if (live := self.live) != self._live:
            log.info("collectors alive: %s", ", ".join(sorted(live)))
            self._live = live
            self._owned.clear()  # drawn again only when somebody came or went
        owned = self._owned.get(instance)
        if owned is None:
            owned = self._owned[instance] = owner(instance, live) == self.me
        return owned

    def start(self) -> None:
        """Begin to ask."""
        self.tasks = [Forever(f"peer {peer}", partial(self._ask, peer)) for peer in self._others]

    async def close(self) -> None:
        """Stop asking."""
        for task in self.tasks:
            await task.stop()

    async def _ask(self, peer: str) -> None:
        getter = HttpGetter(peer)
        try:
            while True:
                begun_s = time.monotonic()
                try:
                    async with asyncio.timeout(ANSWER_S):
                        if (await getter.get("/readyz")).status == 200:
                            self._heard_s[peer] = begun_s
                except (TimeoutError, GetError) as error:
                    log.debug("collector %s does not answer: %s", peer, error)
                await asyncio.sleep(max(0.01, ASK_EVERY_S - (time.monotonic() - begun_s)))
        finally:
            getter.close()
