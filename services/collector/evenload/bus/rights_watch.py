"""Whether Kafka still lets a process do all that it must: asked now and then, told, and never a reason to end.

Who starts may end when a right is missing (`start.py`); who serves goes on, for telemetry must not fail clients. That a
right was taken away would else only show as lines about one topic, and where Kafka hides a topic, as if it were gone.
"""

import asyncio
import logging
from collections.abc import Iterator

from aiokafka.errors import KafkaError
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from evenload.bus.access import AccessRefused, Address, Cluster
from evenload.bus.forever import Forever
from evenload.bus.rights import check_rights, rights_of
from evenload.bus.topics import admin_client, topic_names

log = logging.getLogger(__name__)

EVERY_S = 30.0
_ASK_S = 10.0
_END_S = 1.0  # a question under way gets to its end: the client leaves its socket open when cancelled while it connects


class RightsWatch(Collector):
    """Asks the broker, and is its own metric. A cluster without security is never asked.

    Attributes:
        lacking: what is refused and what to do, in one line; empty when nothing is known to be.
    """

    def __init__(self, address: Address, process: str, topic_prefix: str, *, every_s: float = EVERY_S) -> None:
        """Describe it; `start` begins.

        Args:
            address: From `cluster_of`.
            process: A key of `RIGHTS`, one without a group.
            topic_prefix: First part of the topics' names.
            every_s: Time between two questions.
        """
        self.lacking = ""
        self._address = address
        self._rights = list(rights_of(process, topic_names(topic_prefix)._asdict(), ""))
        self._every_s = every_s
        self._task: Forever | None = None
        self._asking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running loop. Kafka need not be there."""
        if isinstance(self._address, Cluster):
            self._task = Forever("rights at Kafka", self._run)

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            await self._task.stop()
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=_END_S)
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def collect(self) -> Iterator[Metric]:
        """Yield whether something is refused."""
        text = "1 while Kafka does not let this process do all that it must; /readyz and the log say what."
        yield GaugeMetricFamily("evenload_kafka_refuses", text, value=float(bool(self.lacking)))

    async def _run(self) -> None:
        while True:
            self._asking = asyncio.create_task(self._ask())
            await asyncio.shield(self._asking)
            await asyncio.sleep(self._every_s)

    async def _ask(self) -> None:
        was = self.lacking
        try:
            async with asyncio.timeout(_ASK_S), admin_client(self._address, _ASK_S) as admin:
                await check_rights(admin, self._address, self._rights)
        except AccessRefused as refused:
            self.lacking = str(refused)
            if self.lacking != was:
                log.error("%s; until then telemetry waits, and nothing else does", refused)
        except (OSError, KafkaError):  # TimeoutError is one: what is known stays, and others say that Kafka is away
            return
        else:
            self.lacking = ""
            if was:
                log.info("Kafka no longer refuses anything")
