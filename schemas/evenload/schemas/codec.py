"""Bytes to messages and back. One typed error for whatever cannot be read."""

from typing import Any, TypeVar

import msgspec

from evenload.schemas.decisions import DeadLetter, Decision
from evenload.schemas.snapshots import SnapshotBatch
from evenload.schemas.state import InstanceState
from evenload.schemas.telemetry import Batch

WIRE_VERSION = 1
BATCH_BYTES_MAX = 1_000_000  # Kafka's default max.message.bytes, less the record's own frame
STATE_BYTES_MAX = 1_000_000
_DETAIL_MAX = 200  # a refused value may be quoted in the detail, and it may be long

_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()
_batches = msgspec.msgpack.Decoder(Batch)
_snapshots = msgspec.msgpack.Decoder(SnapshotBatch)
_states = msgspec.msgpack.Decoder(InstanceState)
_decisions = msgspec.msgpack.Decoder(Decision)
_dead_letters = msgspec.msgpack.Decoder(DeadLetter)

encode = _encoder.encode


class WireError(ValueError):
    """A message that cannot be read.

    Attributes:
        reason: `too_large`, `corrupt` (not MessagePack, or cut off), `version` (newer than this code) or `invalid`
            (MessagePack, but not such a message).
    """

    retriable = False

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail[:_DETAIL_MAX]}")
        self.reason = reason


def _decode(decoder: "msgspec.msgpack.Decoder[_T]", data: bytes, bytes_max: int) -> _T:
    if len(data) > bytes_max:
        raise WireError("too_large", f"{len(data)} bytes, at most {bytes_max}")
    try:
        message = decoder.decode(data)
    except msgspec.ValidationError as error:
        _check_version(data)
        raise WireError("invalid", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("corrupt", str(error)) from error
    version: int = message.v  # type: ignore[attr-defined]  # every top-level message has one
    if version != WIRE_VERSION:
        raise WireError("version", f"version {version}, this code reads {WIRE_VERSION}")
    return message


def _check_version(data: bytes) -> None:
    """Say `version` rather than `invalid` of a message that is only too new for this code."""
    try:
        fields: Any = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("corrupt", str(error)) from error
    version = fields.get("v") if isinstance(fields, dict) else None
    if isinstance(version, int) and version != WIRE_VERSION:
        raise WireError("version", f"version {version}, this code reads {WIRE_VERSION}")


def decode_batch(data: bytes) -> Batch:
    """Read a telemetry record; raises WireError."""
    return _decode(_batches, data, BATCH_BYTES_MAX)


def decode_snapshots(data: bytes) -> SnapshotBatch:
    """Read a snapshots record; raises WireError."""
    return _decode(_snapshots, data, 16 * BATCH_BYTES_MAX)


def decode_state(data: bytes) -> InstanceState:
    """Read a state record; raises WireError."""
    return _decode(_states, data, STATE_BYTES_MAX)


def decode_decision(data: bytes) -> Decision:
    """Read a decision record; raises WireError."""
    return _decode(_decisions, data, BATCH_BYTES_MAX)


def decode_dead_letter(data: bytes) -> DeadLetter:
    """Read a dead-letter record; raises WireError."""
    return _decode(_dead_letters, data, 2 * BATCH_BYTES_MAX)
