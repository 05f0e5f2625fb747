"""New fields are ignored by old code and have defaults for new code; bounds refuse what would poison a score."""

import math
from typing import Any

import msgspec
import pytest

from evenload.schemas import WireError, decode_batch, decode_state
from tests.schemas.plain import pack
from tests.schemas.samples import SAMPLES, Sample

every_sample = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
NO_FINITE_DURATION = (math.nan, math.inf, -math.inf, -0.001, 1e9 + 1, -1, True, "5", None)


def with_unknown_fields(plain: Any) -> Any:
    """Add a field of the future to every message at every depth (and to nothing else: keys of id maps are integers)."""
    if isinstance(plain, list):
        return [with_unknown_fields(item) for item in plain]
    if not isinstance(plain, dict) or not all(isinstance(key, str) for key in plain) or not plain:
        return plain
    return {"a_new_field": {"x": [1]}, **{key: with_unknown_fields(value) for key, value in plain.items()}}


@every_sample
def test_unknown_fields_are_ignored_at_every_depth(sample: Sample) -> None:
    assert sample.decode(pack(with_unknown_fields(sample.plain))) == sample.message


@every_sample
def test_the_order_of_fields_does_not_matter(sample: Sample) -> None:
    backwards = dict(reversed(sample.plain.items()))
    assert sample.decode(pack(backwards)) == sample.message


@every_sample
def test_a_missing_field_gets_its_default_or_the_message_is_invalid(sample: Sample) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(type(sample.message))}
    for name in sample.plain:
        packed = pack({key: value for key, value in sample.plain.items() if key != name})
        if name == "type":
            assert sample.decode(packed) == sample.message, "a tag may be missing where only one message can stand"
        elif fields[name].required:
            with pytest.raises(WireError) as caught:
                sample.decode(packed)
            assert caught.value.reason == "invalid"
        else:
            field = fields[name]
            factory = field.default_factory
            default = field.default if factory is msgspec.NODEFAULT else factory()
            assert getattr(sample.decode(packed), name) == default


def test_a_state_of_the_first_release_needs_nothing_but_its_instance() -> None:
    assert decode_state(pack({"type": "state", "instance": "c"})) == SAMPLES["state_fresh"].message


def batch_of(**event: Any) -> bytes:
    packed: bytes = pack(
        {"type": "batch", "v": 1, "producer": "p", "incarnation": 1, "seq": 0, "events": [{"instance": "a", **event}]}
    )
    return packed


DURATIONS = [("first_token", "ttft_ms"), ("overdue", "age_ms")]


@pytest.mark.parametrize(("tag", "field"), DURATIONS)
@pytest.mark.parametrize("value", NO_FINITE_DURATION)
def test_a_duration_that_is_not_finite_and_positive_is_refused(tag: str, field: str, value: object) -> None:
    with pytest.raises(WireError, match="invalid"):
        decode_batch(batch_of(type=tag, **{field: value}))


@pytest.mark.parametrize("field", ["retry_after_ms", "ttft_ms", "duration_ms"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e9 + 1])
def test_an_outcomes_durations_are_bounded_too(field: str, value: float) -> None:
    with pytest.raises(WireError, match="invalid"):
        decode_batch(batch_of(type="outcome", kind="ok", **{field: value}))


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.001, 1.001, True])
def test_kv_usage_is_a_share(value: float) -> None:
    with pytest.raises(WireError, match="invalid"):
        decode_batch(batch_of(type="engine_gauges", kv_usage=value))


@pytest.mark.parametrize("field", ["running", "waiting", "prefix_hits", "prefix_queries", "preemptions"])
@pytest.mark.parametrize("value", [-1, 2**53 + 1, 1.0, True])
def test_counts_are_whole_and_not_negative(field: str, value: object) -> None:
    with pytest.raises(WireError, match="invalid"):
        decode_batch(batch_of(type="engine_gauges", **{field: value}))


@pytest.mark.parametrize("value", [math.nan, -0.5, 100.5, math.inf])
def test_a_state_with_an_impossible_score_is_refused(value: float) -> None:
    with pytest.raises(WireError, match="invalid"):
        decode_state(pack({**SAMPLES["state_full"].plain, "damped": value}))


@pytest.mark.parametrize("ring", [[], [0] * 9, [0] * 11, [0] * 9 + [-1]])
def test_a_state_with_a_broken_error_window_is_refused(ring: list[int]) -> None:
    for name in ("ok", "err"):
        with pytest.raises(WireError, match="invalid"):
            decode_state(pack({**SAMPLES["state_full"].plain, name: ring}))


def test_whole_numbers_are_fine_for_durations() -> None:
    (event,) = decode_batch(batch_of(type="first_token", ttft_ms=5)).events
    assert isinstance(event.ttft_ms, float)  # type: ignore[union-attr]
