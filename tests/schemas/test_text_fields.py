"""No prompt or completion text is ever on the wire: each text field is listed here with what it may hold."""

from collections.abc import Iterator

import msgspec
import msgspec.inspect as inspection
import pytest

from evenload.schemas import Batch, DeadLetter, Decision, InstanceState, SnapshotBatch, WireError, decode_batch
from tests.schemas.test_evolution import batch_of

MESSAGES = (Batch, SnapshotBatch, InstanceState, Decision, DeadLetter)

# field: (characters at most, meaning). A new text field fails the test below until somebody has thought about it.
ALLOWED = {
    "Batch.producer": (255, "configured name of a process"),
    "FirstToken.instance": (255, "configured id of an instance"),
    "Overdue.instance": (255, "configured id of an instance"),
    "Outcome.instance": (255, "configured id of an instance"),
    "Outcome.cause": (64, "reason code"),
    "Outcome.request_id": (128, "id of a request, made here or by the client"),
    "RouterLoad.instance": (255, "configured id of an instance"),
    "EngineGauges.instance": (255, "configured id of an instance"),
    "Membership.instance": (255, "configured id of an instance"),
    "Membership.cause": (64, "reason code"),
    "InstanceState.instance": (255, "configured id of an instance"),
    "InstanceState.cooling_cause": (64, "reason code"),
    "InstanceState.cause": (64, "reason code"),
    "InstanceSnapshot.digest": (64, "digest of a config"),
    "SnapshotBatch.scorer": (255, "configured name of a process"),
    "Candidate.instance": (255, "configured id of an instance"),
    "Candidate.excluded": (64, "reason code"),
    "Decision.request_id": (255, "id of a request, made here or by the client"),
    "Decision.router": (255, "configured name of a process"),
    "Decision.model": (255, "name of a model as requested"),
    "Decision.pool": (255, "configured name of a pool"),
    "Decision.policy": (255, "name of a policy"),
    "Decision.winner": (255, "configured id of an instance"),
    "Decision.reason": (64, "reason code"),
    "Decision.config_digest": (64, "digest of a config"),
    "Decision.code_digest": (64, "digest of the code"),
    "Decision.tried": (255, "configured ids of instances"),
    "DeadLetter.topic": (255, "name of a topic"),
    "DeadLetter.reason": (2048, "why a record was not applied"),
}
# Raw bytes of a record that somebody else put on a topic of ours; by the rest of this test it is not a prompt of ours.
BYTES_ALLOWED = {"DeadLetter.payload"}


def structs_below(info: inspection.Type) -> Iterator[inspection.StructType]:
    """Yield every struct that can occur in a value of this type."""
    if isinstance(info, inspection.StructType):
        yield info
        for field in info.fields:
            yield from structs_below(field.type)
    for inner in parts_of(info):
        yield from structs_below(inner)


def parts_of(info: inspection.Type) -> list[inspection.Type]:
    if isinstance(info, inspection.UnionType):
        return list(info.types)
    if isinstance(info, inspection.ListType):
        return [info.item_type]
    if isinstance(info, inspection.DictType):
        return [info.key_type, info.value_type]
    return []


def leaves(info: inspection.Type) -> Iterator[inspection.Type]:
    """Yield the types that a field's own value is made of, without going into structs."""
    yield info
    for inner in parts_of(info):
        yield from leaves(inner)


def fields_of(kind: type[inspection.Type]) -> Iterator[tuple[str, inspection.Type]]:
    for info in inspection.multi_type_info(MESSAGES):
        for struct in structs_below(info):
            for field in struct.fields:
                for leaf in leaves(field.type):
                    if isinstance(leaf, kind):
                        yield f"{struct.cls.__name__}.{field.name}", leaf


def test_every_text_field_is_known_and_bounded() -> None:
    found = {name: leaf.max_length for name, leaf in fields_of(inspection.StrType)}  # type: ignore[attr-defined]
    assert found == {name: bound for name, (bound, _) in ALLOWED.items()}


def test_raw_bytes_occur_only_in_dead_letters() -> None:
    assert {name for name, _ in fields_of(inspection.BytesType)} == BYTES_ALLOWED


def test_no_field_takes_values_of_any_type() -> None:
    for kind in (inspection.AnyType, inspection.RawType, inspection.ExtType, inspection.ByteArrayType):
        assert not dict(fields_of(kind))


@pytest.mark.parametrize(
    ("event", "field", "bound"),
    [
        ({"type": "outcome", "kind": "ok"}, "cause", 64),
        ({"type": "membership", "change": "joined"}, "cause", 64),
        ({"type": "router_load"}, "instance", 255),
    ],
)
def test_a_text_longer_than_its_bound_is_refused(event: dict[str, str], field: str, bound: int) -> None:
    (read,) = decode_batch(batch_of(**event, **{field: "é" * bound})).events
    assert msgspec.to_builtins(read)[field] == "é" * bound
    with pytest.raises(WireError, match="invalid"):
        decode_batch(batch_of(**event, **{field: "é" * (bound + 1)}))
