"""What others may report, and the telemetry that it becomes. Pure: bytes in, batches out.

A report is one or more events of one sender. Fields that are not in the schema are refused, so no prompt and no answer
can slip in. `session` and `seq` make a report that is sent again recognisable: they become incarnation and sequence of
its batches, which every fold counts once. The incarnation is a digest of key, producer and session, so no sender can
pass for another.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from evenload.api.errors import ApiError
from evenload.api.keys import Refused
from evenload.schemas import WIRE_VERSION, Batch, Event, FirstToken, Outcome, Overdue, RouterLoad
from evenload.schemas.telemetry import COUNT_MAX, Count, Milliseconds, Name, OutcomeKind

TYPES = {
    "application/json": "json",
    "application/msgpack": "msgpack",
    "application/x-msgpack": "msgpack",
    "application/vnd.msgpack": "msgpack",
}
_PATH = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_INCARNATION_BITS = 63

Code = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9_.:-]*$")]
Label = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]


class _Reported(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Fields of every event.

    Attributes:
        instance: id of the instance, as in the pools of the settings.
        ago_ms: how long before the report was sent it happened.
    """

    instance: Name
    ago_ms: Milliseconds = 0.0


class ReportedOutcome(_Reported, frozen=True, tag="outcome"):
    """How an attempt ended; the fields are those of `schemas.Outcome`."""

    kind: OutcomeKind
    status: Annotated[int, Meta(ge=0, le=999)] = 0
    cause: Code = ""
    retry_after_ms: Milliseconds | None = None
    ttft_ms: Milliseconds | None = None
    duration_ms: Milliseconds = 0.0
    prompt_tokens: Count = 0
    output_tokens: Count = 0


class ReportedFirstToken(_Reported, frozen=True, tag="first_token"):
    """The first content token arrived `ttft_ms` after the request was sent."""

    ttft_ms: Milliseconds
    prompt_tokens: Count = 0


class ReportedOverdue(_Reported, frozen=True, tag="overdue"):
    """A request still waits for its first token after `waited_ms`."""

    waited_ms: Milliseconds
    prompt_tokens: Count = 0


class ReportedLoad(_Reported, frozen=True, tag="load"):
    """What the sender has under way at the instance; replaces what it said before, and expires after 3 s."""

    in_flight: Count = 0
    awaiting: Count = 0
    in_flight_tokens: Count = 0
    awaiting_tokens: Count = 0


Reported = ReportedOutcome | ReportedFirstToken | ReportedOverdue | ReportedLoad


class Report(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One POST.

    Attributes:
        producer: the sender's name.
        session: names one life of the sender: something random that it draws when it starts.
        seq: rises with each report of a session; a report that is sent again keeps its own.
        events: in the order in which they were observed.
    """

    producer: Label
    events: Annotated[list[Reported], Meta(min_length=1)]
    session: Label | None = None
    seq: Annotated[int, Meta(ge=0, le=COUNT_MAX)] | None = None


_decoders: Mapping[str, Any] = {
    "json": msgspec.json.Decoder(Report),
    "msgpack": msgspec.msgpack.Decoder(Report),
}


class Sender(NamedTuple):
    """Who a batch is of, on the wire."""

    producer: str
    incarnation: int


def read_report(body: bytes, content_type: str, events_max: int, known: Callable[[str], bool]) -> Report:
    """Read a body.

    Args:
        body: As it came, decompressed.
        content_type: Of the request.
        events_max: Most events.
        known: Tells whether there is an instance of that id.

    Raises:
        Refused: 400, 413, 415 or 422; names index and field of what is wrong.
    """
    name = content_type.partition(";")[0].strip().lower()
    kind = TYPES.get(name)
    if kind is None:
        message = f"Content-Type must be {' or '.join(list(TYPES)[:2])}."
        raise Refused(ApiError(status=415, code="unsupported_media_type", message=message))
    try:
        report: Report = _decoders[kind].decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused(ApiError(status=400, code="undecodable", message=f"The body is not {name}.")) from None
    if len(report.events) > events_max:
        message = f"{len(report.events)} events; at most {events_max} go in one report."
        raise Refused(ApiError(status=413, code="too_many_events", message=message))
    if (report.session is None) != (report.seq is None):
        field = "session" if report.session is None else "seq"
        raise _wrong(field, "session and seq belong together: give both, or none")
    for index, event in enumerate(report.events):
        if not known(event.instance):
            raise _wrong(f"events[{index}].instance", f"there is no instance {event.instance[:64]!r}")
    return report


def sender_of(key: str, producer: str, session: str) -> Sender:
    """Name a sender on the wire; each (key, producer, session) has an incarnation of its own."""
    digest = hashlib.sha256("\n".join((key, producer, session)).encode()).digest()
    return Sender(f"{key}/{producer}"[:255], int.from_bytes(digest[:8], "big") >> (64 - _INCARNATION_BITS))


def batches(
    events: Sequence[Reported],
    sender: Sender,
    seq: int,
    now_ms: int,
    *,
    partition_of: Callable[[str], int],
    generation_of: Callable[[str], int],
) -> dict[int, Batch]:
    """Make the telemetry of a report, one batch per partition.

    Args:
        events: Of the report.
        sender: Whose.
        seq: Of the report.
        now_ms: The log's clock, as far as it is known.
        partition_of: By instance.
        generation_of: By instance; a report is about the one that is there now.
    """
    oldest_ms = max(event.ago_ms for event in events)
    split: dict[int, list[Event]] = {}
    for event in sorted(events, key=lambda event: -event.ago_ms):
        at = round(oldest_ms - event.ago_ms)
        split.setdefault(partition_of(event.instance), []).append(_told(event, at, generation_of(event.instance)))
    return {
        partition: Batch(
            producer=sender.producer,
            incarnation=sender.incarnation,
            seq=seq,
            events=told,
            age_ms=oldest_ms,
            view_ms=max(0, round(now_ms - oldest_ms)),
            v=WIRE_VERSION,
        )
        for partition, told in sorted(split.items())
    }


def _told(event: Reported, at: int, gen: int) -> Event:
    match event:
        case ReportedFirstToken():
            return FirstToken(
                instance=event.instance, gen=gen, at=at, ttft_ms=event.ttft_ms, prompt_tokens=event.prompt_tokens
            )
        case ReportedOverdue():
            return Overdue(
                instance=event.instance, gen=gen, at=at, age_ms=event.waited_ms, prompt_tokens=event.prompt_tokens
            )
        case ReportedLoad():
            return RouterLoad(
                instance=event.instance,
                gen=gen,
                at=at,
                in_flight=event.in_flight,
                awaiting=event.awaiting,
                in_flight_tokens=event.in_flight_tokens,
                awaiting_tokens=event.awaiting_tokens,
            )
        case ReportedOutcome():
            return Outcome(
                instance=event.instance,
                gen=gen,
                at=at,
                kind=event.kind,
                status=event.status,
                cause=event.cause,
                retry_after_ms=event.retry_after_ms,
                ttft_ms=event.ttft_ms,
                duration_ms=event.duration_ms,
                prompt_tokens=event.prompt_tokens,
                output_tokens=event.output_tokens,
            )


def _invalid(text: str) -> Refused:
    """Put msgspec's words for a value that does not fit into the API's form."""
    match = _PATH.match(text)
    assert match is not None  # it matches any text
    return _wrong(match[2] or None, match[1])


def _wrong(field: str | None, reason: str) -> Refused:
    where = f"{field}: " if field else ""
    return Refused(ApiError(status=422, code="invalid_report", message=f"{where}{reason}"[:500], param=field))
