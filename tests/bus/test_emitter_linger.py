"""When the emitter sends: lingers of all partitions end together, so that one request takes what is due."""

import asyncio
import itertools
from collections.abc import Callable, Sequence

from evenload.bus.emitter import Emitter
from evenload.bus.link import Receipt, Record
from evenload.bus.topics import partition_for
from evenload.schemas import FirstToken

PARTITIONS = 4


class ScriptedLink:
    """Takes everything at once and remembers the partitions in order."""

    def __init__(self) -> None:
        self.partitions: list[int] = []
        self.began = asyncio.Event()

    async def produce(self, _topic: str, partition: int, records: Callable[[], Sequence[Record]]) -> Receipt:
        self.partitions.append(partition)
        self.began.set()
        return Receipt(len(records()), len(self.partitions), 0)

    async def close(self) -> None:
        pass


def one_instance_per_partition() -> list[str]:
    found: dict[int, str] = {}
    for number in itertools.count():
        found.setdefault(partition_for(b"i-%d" % number, PARTITIONS), f"i-{number}")
        if len(found) == PARTITIONS:
            return list(found.values())
    raise AssertionError


async def test_lingers_of_all_partitions_end_together() -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    link = ScriptedLink()
    emitter = Emitter(
        "127.0.0.1:1",
        "p",
        "r",
        partitions=PARTITIONS,
        linger_ms_min=100,
        link=link,  # type: ignore[arg-type]
        clock=lambda: loop.time() - start_s,
    )
    emitter.incarnation = 0  # the periods begin at 0 of the clock
    emitter.start()
    for name in one_instance_per_partition():
        emitter.add(FirstToken(instance=name, ttft_ms=1.0), 0)
        await asyncio.sleep(0)
    assert link.partitions == []
    await link.began.wait()
    for _ in range(3):  # turns of the loop, in which nothing but tasks that were ready already can run
        await asyncio.sleep(0)
    assert sorted(link.partitions) == list(range(PARTITIONS))
    await emitter.close()
