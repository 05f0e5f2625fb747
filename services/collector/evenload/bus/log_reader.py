"""Reading a topic from here to there, once: for the auditor and for tests."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from evenload.bus.access import AccessRefused, Address, absent, client_options, is_refusal, knock_secured, words
from evenload.bus.client_logs import limit_client_logs
from evenload.bus.topics import BusUnavailable

_REQUEST_MS = 8_000


class LogRecord(NamedTuple):
    """One record as it lies in the log."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class TopicMissing(LookupError):
    """The topic to read does not exist. The message names it."""


async def read_log(
    bootstrap: Address,
    topic: str,
    *,
    first: Mapping[int, int] | None = None,
    until: Mapping[int, int] | None = None,
    first_ms: int | None = None,
    until_ms: int | None = None,
    silence_s: float = 30.0,
) -> AsyncIterator[LogRecord]:
    """Read all partitions of a topic, in order within each, up to where they end now.

    Args:
        bootstrap: Brokers, `host:port` with commas between.
        topic: Its full name.
        first: Per partition the offset to begin at; the oldest kept if there is none.
        until: Per partition the offset to stop before; at most the end of now.
        first_ms: Begin at the first record of this time or later, where `first` does not say.
        until_ms: Stop before the first record of this time or later, where `until` does not say.
        silence_s: Longest wait for the next record.

    Raises:
        AccessRefused: Kafka does not let us in, or not read.
        BusUnavailable: Kafka did not answer, at first or in between.
        TopicMissing: there is no such topic.
    """
    limit_client_logs()
    consumer = AIOKafkaConsumer(
        **client_options(bootstrap), group_id=None, enable_auto_commit=False, request_timeout_ms=_REQUEST_MS
    )
    try:
        try:
            async with asyncio.timeout(silence_s):
                await knock_secured(bootstrap)
                await consumer.start()
                spans = await _spans(consumer, (topic, bootstrap), (first or {}, until or {}), (first_ms, until_ms))
            async for record in _read(consumer, spans, silence_s):
                yield record
        except (KafkaError, OSError, TimeoutError) as error:
            if isinstance(error, BusUnavailable):
                raise
            kind = AccessRefused if is_refusal(error) else BusUnavailable
            raise kind(f"cannot read {topic} at {bootstrap}: {words(error, bootstrap)}") from error
    finally:
        await consumer.stop()


Spans = dict[TopicPartition, tuple[int, int]]


async def _spans(
    consumer: Any,
    what: tuple[str, Address],
    offsets: tuple[Mapping[int, int], Mapping[int, int]],
    times: tuple[int | None, int | None],
) -> Spans:
    """Where to begin and where to stop, for the partitions that have something in between."""
    (topic, address), (first, until), (first_ms, until_ms) = what, offsets, times
    cluster = await consumer._client.fetch_all_metadata()  # asking for one topic by name could make it
    partitions = sorted(cluster.partitions_for_topic(topic) or ())
    if not partitions:
        raise TopicMissing(absent(topic, address))
    places = [TopicPartition(topic, partition) for partition in partitions]
    consumer.assign(places)
    lows: dict[TopicPartition, int] = await consumer.beginning_offsets(places)
    highs: dict[TopicPartition, int] = await consumer.end_offsets(places)
    starts = lows if first_ms is None else await _at_time(consumer, places, first_ms, highs)
    stops = highs if until_ms is None else await _at_time(consumer, places, until_ms, highs)
    spans: Spans = {}
    for place in places:
        start = max(first.get(place.partition, starts[place]), lows[place])
        stop = min(until.get(place.partition, stops[place]), highs[place])
        if start < stop:
            spans[place] = (start, stop)
    return spans


async def _at_time(
    consumer: Any, places: list[TopicPartition], at_ms: int, highs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    found = await consumer.offsets_for_times(dict.fromkeys(places, at_ms))
    return {place: highs[place] if found.get(place) is None else found[place].offset for place in places}


async def _read(consumer: Any, spans: Spans, silence_s: float) -> AsyncIterator[LogRecord]:
    if not spans:
        return  # assigned to nothing, the client's fetcher would neither work nor stop
    consumer.assign(list(spans))
    for place, (start, _) in spans.items():
        consumer.seek(place, start)
    unfinished = set(spans)
    while unfinished:
        fetched = await consumer.getmany(*unfinished, timeout_ms=int(silence_s * 1000))
        # Compaction leaves gaps, also before the end: the position tells what was passed, records alone do not.
        passed = {place: await consumer.position(place) for place in unfinished}
        if not fetched and all(passed[place] < spans[place][1] for place in unfinished):
            raise BusUnavailable(f"no record within {silence_s:g} s, {len(unfinished)} partitions unfinished")
        for place, records in fetched.items():
            for record in records:
                if record.offset < spans[place][1]:
                    yield LogRecord(place.partition, record.offset, record.timestamp, record.key, record.value)
        unfinished -= {place for place, position in passed.items() if position >= spans[place][1]}
