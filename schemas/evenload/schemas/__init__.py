"""The wire: every message that Evenload puts on Kafka, and how bytes become messages.

Start with `telemetry.py`, then `state.py`, `snapshots.py`, `decisions.py`; `codec.py` is the only way in and out.
`schemas/README.md` is the field reference.
"""

from evenload.schemas.codec import (
    BATCH_BYTES_MAX,
    WIRE_VERSION,
    WireError,
    decode_batch,
    decode_dead_letter,
    decode_decision,
    decode_snapshots,
    decode_state,
    encode,
)
from evenload.schemas.decisions import Candidate, DeadLetter, Decision, Tail
from evenload.schemas.snapshots import InstanceSnapshot, SnapshotBatch
from evenload.schemas.state import InstanceState, Load
from evenload.schemas.telemetry import (
    Batch,
    EngineGauges,
    Event,
    FirstToken,
    Membership,
    Outcome,
    Overdue,
    RouterLoad,
)
from evenload.schemas.version import __version__

__all__ = [
    "BATCH_BYTES_MAX",
    "WIRE_VERSION",
    "Batch",
    "Candidate",
    "DeadLetter",
    "Decision",
    "EngineGauges",
    "Event",
    "FirstToken",
    "InstanceSnapshot",
    "InstanceState",
    "Load",
    "Membership",
    "Outcome",
    "Overdue",
    "RouterLoad",
    "SnapshotBatch",
    "Tail",
    "WireError",
    "__version__",
    "decode_batch",
    "decode_dead_letter",
    "decode_decision",
    "decode_snapshots",
    "decode_state",
    "encode",
]
