"""Whatever cannot be read raises WireError with the right reason, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.schemas import BATCH_BYTES_MAX, WIRE_VERSION, WireError, decode_batch, decode_snapshots, encode
from evenload.schemas.codec import STATE_BYTES_MAX
from tests.schemas.plain import pack
from tests.schemas.samples import SAMPLES, Sample

REASONS = {"too_large", "corrupt", "version", "invalid"}
DECODERS = {sample.decode for sample in SAMPLES.values()}
every_sample = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)


def reason_of(sample: Sample, data: bytes) -> str:
    with pytest.raises(WireError) as caught:
        sample.decode(data)
    assert not caught.value.retriable
    return caught.value.reason


def read(decode: Callable[[bytes], Any], data: bytes) -> tuple[Any, str]:
    """Return the message, or None and why there is none; any other error is a failure."""
    try:
        return decode(data), ""
    except WireError as error:
        return None, error.reason


def changed(sample: Sample, **fields: Any) -> bytes:
    packed: bytes = pack({**sample.plain, **fields})
    return packed


@every_sample
def test_a_message_cut_off_anywhere_is_corrupt(sample: Sample) -> None:
    data = encode(sample.message)
    assert {reason_of(sample, data[:length]) for length in range(len(data))} == {"corrupt"}


@every_sample
def test_trailing_bytes_are_corrupt(sample: Sample) -> None:
    for tail in (b"\x00", b"\xc0", encode(sample.message)):
        assert reason_of(sample, encode(sample.message) + tail) == "corrupt"


@every_sample
@pytest.mark.parametrize("version", [-1, 0, WIRE_VERSION + 1, 2**64 - 1])
def test_an_unknown_version_says_so(sample: Sample, version: int) -> None:
    assert reason_of(sample, changed(sample, v=version)) == "version"


@every_sample
def test_a_newer_message_of_another_shape_says_version_rather_than_invalid(sample: Sample) -> None:
    newer = pack({"type": sample.plain["type"], "v": WIRE_VERSION + 1, "events": "not even a list"})
    assert reason_of(sample, newer) == "version"


@every_sample
@pytest.mark.parametrize("version", [None, True, 1.0, "1", [1]])
def test_a_version_that_is_no_integer_is_invalid(sample: Sample, version: object) -> None:
    assert reason_of(sample, changed(sample, v=version)) == "invalid"


@every_sample
@pytest.mark.parametrize("tag", ["other", "", 1, None])
def test_a_wrong_tag_is_invalid(sample: Sample, tag: object) -> None:
    assert reason_of(sample, changed(sample, type=tag)) == "invalid"


@pytest.mark.parametrize("other", SAMPLES.values(), ids=SAMPLES)
@every_sample
def test_messages_are_not_mistaken_for_each_other(sample: Sample, other: Sample) -> None:
    if sample.decode is not other.decode:
        assert reason_of(sample, encode(other.message)) == "invalid"


def test_an_event_without_a_tag_or_with_a_strange_one_is_invalid() -> None:
    batch = SAMPLES["batch_smallest"]
    strange: list[Any] = [{"instance": "a"}, {"type": "weather", "instance": "a"}, 5, None, []]
    for event in strange:
        assert reason_of(batch, changed(batch, events=[event])) == "invalid"


@pytest.mark.parametrize(
    ("name", "bytes_max"),
    [
        ("batch_full", BATCH_BYTES_MAX),
        ("state_full", STATE_BYTES_MAX),
        ("snapshots", 16 * BATCH_BYTES_MAX),
        ("decision", BATCH_BYTES_MAX),
        ("dead_letter", 2 * BATCH_BYTES_MAX),
    ],
)
def test_a_message_is_read_up_to_its_bound_and_refused_one_byte_beyond(name: str, bytes_max: int) -> None:
    sample = SAMPLES[name]
    frame = len(changed(sample, unknown=b"")) + 3  # a long binary has three more bytes of length
    assert sample.decode(changed(sample, unknown=bytes(bytes_max - frame))) == sample.message
    assert reason_of(sample, changed(sample, unknown=bytes(bytes_max - frame + 1))) == "too_large"


@pytest.mark.parametrize("data", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc1"])
def test_a_huge_length_without_content_is_corrupt_and_allocates_nothing(data: bytes) -> None:
    assert reason_of(SAMPLES["batch_full"], data) == "corrupt"
    unfinished = pack({"type": "batch", "v": 1, "events": 0})[:-1]
    assert reason_of(SAMPLES["batch_full"], unfinished + data) == "corrupt"


def test_deep_nesting_is_corrupt_also_inside_an_unknown_field() -> None:
    deep = b"\x91" * 300_000 + b"\xc0"
    batch = SAMPLES["batch_full"]
    assert reason_of(batch, deep) == "corrupt"
    assert reason_of(batch, changed(batch, unknown=0)[:-1] + deep) == "corrupt"
    assert reason_of(batch, changed(batch, events=1, unknown=0)[:-1] + deep) == "corrupt"


def test_keys_that_are_no_strings_or_not_hashable_are_unreadable() -> None:
    for data in (b"\x81\x01\x02", b"\x81\x81\x01\x02\x03", b"\x81\x91\x01\x02"):
        with pytest.raises(WireError):
            decode_batch(data)


def test_text_that_is_not_utf8_is_corrupt() -> None:
    batch = SAMPLES["batch_smallest"]
    assert reason_of(batch, encode(batch.message).replace(b"\xa1p", b"\xa1\xff")) == "corrupt"


def test_the_error_stays_short_when_the_refused_value_is_long() -> None:
    batch = SAMPLES["batch_smallest"]
    with pytest.raises(WireError) as caught:
        decode_batch(changed(batch, events=[{"type": "x" * 10_000, "instance": "a"}]))
    assert len(str(caught.value)) < 300


@given(data=st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_but_wire_errors(data: bytes) -> None:
    for decode in DECODERS:
        assert read(decode, data)[1] in REASONS


@given(
    name=st.sampled_from(sorted(SAMPLES)),
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=9), st.integers(0, 9)), max_size=4),
)
def test_mutated_messages_raise_nothing_but_wire_errors(name: str, edits: list[tuple[float, bytes, int]]) -> None:
    data = encode(SAMPLES[name].message)
    for where, inserted, removed in edits:
        start = int(where * len(data))
        data = data[:start] + inserted + data[start + removed :]
    for decode in DECODERS:
        message, reason = read(decode, data)
        if reason:
            assert reason in REASONS
        else:
            assert decode(encode(message)) == message, "what was read can be written and read again"


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(name=st.sampled_from(sorted(SAMPLES)), data=st.data())
def test_a_field_of_any_other_value_is_read_within_its_bounds_or_refused(name: str, data: st.DataObject) -> None:
    sample = SAMPLES[name]
    field = data.draw(st.sampled_from(sorted(sample.plain)))
    message, reason = read(sample.decode, changed(sample, **{field: data.draw(_values)}))
    if reason:
        assert reason in {"invalid", "version"}
    else:
        assert sample.decode(encode(message)) == message


def test_any_byte_of_a_message_may_flip_without_another_error() -> None:
    data = encode(SAMPLES["snapshots"].message)
    for position in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            flipped = data[:position] + bytes([data[position] ^ flip]) + data[position + 1 :]
            assert read(decode_snapshots, flipped)[1] in {"", *REASONS}
