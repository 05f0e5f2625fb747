"""`POST /v1/telemetry` and `POST /v1/traces`: outcomes that other gateways have seen, into the log.

202 means that Kafka has the report. Reports of one sender are written one after the other, since a fold drops what
comes after a higher sequence of the same incarnation; one that is sent again is answered without being written again,
if this process took it the first time, and else dropped by the folds. Whoever gives no session gets one of this process
and key: then a report that is sent again counts again.
"""

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from aiohttp import web

from evenload.api.errors import ApiError
from evenload.api.keys import ClientKeys, Key, Refused
from evenload.bus.link import Receipt, Record
from evenload.collector.door import Door, Page, body_of
from evenload.collector.reports import Report, Sender, batches, read_report, sender_of
from evenload.schemas import Batch, encode
from evenload.settings import InstanceSettings
from evenload.settings.ingest import IngestSettings

if TYPE_CHECKING:
    from evenload.collector.otlp import Places

SENDERS_MAX = 4096  # whose last report is remembered; of others the folds know
_RETRY_S = 1

Write = Callable[[int, Callable[[], list[Record]]], Awaitable[Receipt]]


class Writer:
    """One sender's reports on their way.

    Attributes:
        seq: of the last one that Kafka has; -1 before any.
        next_seq: for reports that bring none.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.seq = -1
        self.next_seq = 0


class Ingest:
    """Takes reports.

    Attributes:
        counts: reports by answer: `accepted`, `duplicate`, or the code of the error.
        events: accepted events.
    """

    def __init__(
        self,
        settings: IngestSettings,
        keys: ClientKeys,
        *,
        write: Write,
        now_ms: Callable[[], int],
        partition_of: Callable[[str], int],
        generation_of: Callable[[str], int],
        places_of: "Callable[[Iterable[InstanceSettings]], Places] | None" = None,
    ) -> None:
        """Describe it; `app` serves it.

        Args:
            settings: Its bounds.
            keys: Of the reporters.
            write: Appends to a partition of the telemetry topic, and returns when Kafka has it.
            now_ms: The log's clock.
            partition_of: By instance.
            generation_of: By instance; reports are about the one that is there now.
            places_of: Finds instances by address, for spans; None takes none.
        """
        self.counts: Counter[str] = Counter()
        self.events = 0
        self._settings = settings
        self._keys = keys
        self._write = write
        self._now_ms = now_ms
        self._known: frozenset[str] = frozenset()
        self._partition_of = partition_of
        self._generation_of = generation_of
        self._places_of = places_of
        self._places: Places | None = None
        self._session = secrets.token_hex(8)
        self._senders: OrderedDict[Sender, Writer] = OrderedDict()
        self._under_way = 0

    def follow(self, instances: Sequence[InstanceSettings]) -> None:
        """Take reports about these instances from now on."""
        self._known = frozenset(instance.id for instance in instances)
        self._places = self._places_of(instances) if self._places_of is not None else None

    def admit_by(self, keys: ClientKeys) -> None:
        """Take other keys; those that stay keep what is left of their rates."""
        keys.inherit(self._keys)
        self._keys = keys

    def door(self) -> Door:
        """Return the server; in the event loop."""
        pages: dict[str, Page] = {"/v1/telemetry": self._telemetry}
        if self._places_of is not None:
            pages["/v1/traces"] = self._traces
        return Door(pages, self._settings.max_body_bytes, self.counts)

    async def _telemetry(self, request: web.BaseRequest) -> web.Response:
        key = self._admit(request)
        body = await body_of(request, self._settings.max_body_bytes)
        report = read_report(
            body, request.headers.get("content-type", ""), self._settings.max_events, self._known.__contains__
        )
        written = await self.take(key, report)
        accepted, duplicates = (len(report.events), 0) if written else (0, len(report.events))
        return web.json_response({"accepted": accepted, "duplicates": duplicates}, status=202)

    async def _traces(self, request: web.BaseRequest) -> web.Response:
        from evenload.collector import otlp

        assert self._places is not None
        key = self._admit(request)
        body = await body_of(request, self._settings.max_body_bytes)
        sent, kind = otlp.read_request(body, request.headers.get("content-type", ""))
        spans = otlp.events_of(sent, self._places, time.time_ns())
        events_max = 2 * self._settings.max_events  # a span is two events at most
        if len(spans.events) > events_max:
            message = f"{spans.spans} spans; at most {self._settings.max_events} go in one request."
            raise Refused(ApiError(status=413, code="too_many_events", message=message))
        if spans.events:
            await self.take(key, Report(producer="otlp", events=spans.events))
        self.counts["span_without_instance"] += spans.unplaced
        content_type, answer = otlp.answer(kind, spans)
        return web.Response(body=answer, content_type=content_type)

    def _admit(self, request: web.BaseRequest) -> Key:
        """Let a request in before its body is read, or refuse it."""
        headers = {
            name.lower().encode(): value.encode(errors="surrogateescape") for name, value in request.headers.items()
        }
        self._keys.admit(headers, time.monotonic())
        return self._keys.identify(headers)

    async def take(self, key: Key, report: Report) -> bool:
        """Write a report; False if it had been written before.

        Raises:
            Refused: 503; it is not known to be written, and can be sent again.
        """
        if self._under_way >= self._settings.max_concurrent:
            raise _unavailable("overloaded", f"{self._under_way} reports are under way already")
        self._under_way += 1
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                written = await self._in_turn(key, report)
        except TimeoutError:
            raise _unavailable("kafka_unavailable", "Kafka did not take the report in time") from None
        finally:
            self._under_way -= 1
        self.counts["accepted" if written else "duplicate"] += 1
        self.events += len(report.events) if written else 0
        return written

    async def _in_turn(self, key: Key, report: Report) -> bool:
        sender = sender_of(key.name, report.producer, report.session or self._session)
        writer = self._writer(sender)
        async with writer.lock:
            seq = report.seq
            if seq is None:
                seq, writer.next_seq = writer.next_seq, writer.next_seq + 1
            if seq <= writer.seq:
                return False
            made = batches(
                report.events,
                sender,
                seq,
                self._now_ms(),
                partition_of=self._partition_of,
                generation_of=self._generation_of,
            )
            await asyncio.gather(*(self._append(partition, batch) for partition, batch in made.items()))
            writer.seq = seq
        return True

    def _writer(self, sender: Sender) -> Writer:
        writer = self._senders.get(sender)
        if writer is None:
            writer = self._senders[sender] = Writer()
            self._forget()
        self._senders.move_to_end(sender)
        return writer

    def _forget(self) -> None:
        """Forget the sender that has been silent for longest; one whose report is under way is not."""
        if len(self._senders) > SENDERS_MAX:
            idle = next((sender for sender, writer in self._senders.items() if not writer.lock.locked()), None)
            if idle is not None:
                del self._senders[idle]

    async def _append(self, partition: int, batch: Batch) -> None:
        record: Record = (None, encode(batch))
        await self._write(partition, lambda: [record])


def _unavailable(code: str, reason: str) -> Refused:
    message = f"{reason}; send it again in {_RETRY_S} s, with the same session and seq."
    return Refused(ApiError(status=503, code=code, message=message, retry_after_s=_RETRY_S))
