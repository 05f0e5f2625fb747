"""What a start makes of the changelog, whoever wrote to it in whatever order."""

import pytest

from evenload.schemas import InstanceState, encode
from evenload.scorer.recovery import Recovered


def state(instance: str, as_of: int, left_ms: int | None = None) -> bytes:
    return encode(InstanceState(instance=instance, as_of=as_of, log_ms=as_of * 10, left_ms=left_ms))


Record = tuple[str, bytes | None, int | None] | tuple[str, bytes | None, int | None, int, int]


def read(*records: Record) -> Recovered:
    recovered = Recovered()
    for record in records:
        recovered.add(*record)
    return recovered


def test_an_idle_instance_does_not_make_the_partition_read_its_past_again() -> None:
    recovered = read(("idle", state("idle", 3), 5), ("busy", state("busy", 900), 900))
    assert recovered.resume(901) == 901


def test_states_written_and_not_committed_yet_are_not_skipped_over() -> None:
    recovered = read(("a", state("a", 90), 90), ("b", state("b", 100), 100))
    assert recovered.resume(91) == 91


def test_without_a_committed_offset_the_log_is_read_from_its_beginning() -> None:
    assert read(("a", state("a", 4), 4)).resume(None) is None
    assert read().resume(None) is None


def test_a_lost_changelog_means_to_read_all_telemetry_again() -> None:
    assert read().resume(5_000) == 0


def test_the_state_that_includes_more_wins_over_the_one_written_last() -> None:
    recovered = read(("a", state("a", 90), 90), ("a", state("a", 40), 50))
    assert recovered.states()["a"].as_of == 90
    assert recovered.overtaken == 1
    assert recovered.resume(91) == 91


def test_a_zombies_record_that_hides_a_newer_one_makes_the_partition_go_back() -> None:
    # Compaction removed a's newer record, which stood before the zombie's.
    recovered = read(("b", state("b", 90), 90), ("a", state("a", 40), 50))
    assert recovered.suspects == {"a": 50}
    assert recovered.resume(91) == 51


def test_a_zombies_record_shows_by_its_place_when_compaction_has_left_none_before_it() -> None:
    # The owner since changelog offset 2 wrote b up to 90, the zombie b up to 50, the owner a: then came compaction.
    recovered = read(("b", state("b", 40), 50, 0, 4), ("a", state("a", 95), 95, 2, 5))
    assert recovered.suspects == {"b": 50}
    assert recovered.resume(91) == 51


def test_an_idle_instances_record_of_an_earlier_owner_is_no_suspect() -> None:
    recovered = read(("b", state("b", 40), 50, 0, 1), ("a", state("a", 95), 95, 2, 5))
    assert not recovered.suspects
    assert (recovered.resume(91), recovered.end) == (91, 6)


def test_a_suspect_is_cleared_by_a_newer_record_of_its_instance() -> None:
    recovered = read(("b", state("b", 90), 90), ("a", state("a", 40), 50), ("a", state("a", 80), 95))
    assert not recovered.suspects
    assert recovered.resume(96) == 96


def test_a_lone_instances_old_record_shows_in_the_committed_offset() -> None:
    assert read(("a", state("a", 40), 50)).resume(91) == 51


def test_records_of_writers_without_the_header_vouch_for_their_own_state_only() -> None:
    assert read(("a", state("a", 40), None)).resume(91) == 41


def test_tombstones_remove_instances_that_left() -> None:
    recovered = read(("a", state("a", 40, left_ms=400), 40), ("b", state("b", 60), 60), ("a", None, 70))
    assert set(recovered.states()) == {"b"}
    assert recovered.resume(71) == 71


def test_a_zombies_tombstone_does_not_remove_an_instance_that_came_back() -> None:
    recovered = read(("a", state("a", 60), 60), ("a", None, 50))
    assert set(recovered.states()) == {"a"}


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa1v\x09"])
def test_records_that_cannot_be_read_are_counted_and_left_out(data: bytes) -> None:
    recovered = read(("a", data, 10), ("b", state("b", 60), 60))
    assert set(recovered.states()) == {"b"}
    assert recovered.unreadable == 1
