"""The Faust table whose changelog is the state topic.

Faust recovers it before it lets telemetry through, and that is all it is used for: it keeps what `recovery.py` makes of
the changelog instead of a dictionary in which the record written last wins.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import faust
from faust.types import FutureMessage

from evenload.scorer.recovery import Recovered

THROUGH_HEADER = "through"
SINCE_HEADER = "since"


class StateTable(faust.Table):  # type: ignore[misc]
    """States per partition, as far as recovery has read them.

    Attributes:
        recovered: by partition; kept over rebalances, because Faust reads on where it stopped if a partition stays.
        records_read: changelog records taken in since the start.
    """

    def __init__(self, app: faust.App, **kwargs: Any) -> None:
        self.recovered: defaultdict[int, Recovered] = defaultdict(Recovered)
        self.records_read = 0
        super().__init__(app, **kwargs)

    def apply_changelog_batch(self, batch: Iterable[Any]) -> None:
        """Take in recovered records; Faust calls this."""
        for event in batch:
            message = event.message
            headers = dict(message.headers or ())
            through, since = headers.get(THROUGH_HEADER), headers.get(SINCE_HEADER)
            self.recovered[message.partition].add(
                message.key.decode(),
                message.value,
                None if through is None else int(through),
                None if since is None else int(since),
                message.offset,
            )
            self.records_read += 1

    async def on_recovery_completed(self, active_tps: set[Any], standby_tps: set[Any]) -> None:
        """Forget partitions that went elsewhere; Faust calls this, and reads them anew if they come back."""
        for partition in self.recovered.keys() - {tp.partition for tp in active_tps}:
            del self.recovered[partition]
        await super().on_recovery_completed(active_tps, standby_tps)

    def write(self, partition: int, instance: str, data: bytes | None, through: int, since: int) -> FutureMessage:
        """Send a state record (None: a tombstone) to the changelog; the result is done when Kafka has it."""
        return self.changelog_topic.send_soon(
            key=instance.encode(),
            value=data,
            partition=partition,
            headers={THROUGH_HEADER: b"%d" % through, SINCE_HEADER: b"%d" % since},
            key_serializer="raw",
            value_serializer="raw",
        )
