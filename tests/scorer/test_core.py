"""One partition without Kafka: what it applies, publishes, writes and refuses."""

import itertools

import pytest

from evenload.schemas import (
    Batch,
    Event,
    FirstToken,
    InstanceState,
    Membership,
    Outcome,
    RouterLoad,
    SnapshotBatch,
    decode_state,
    encode,
)
from evenload.scorer.core import PAYLOAD_BYTES_MAX, SNAPSHOTS_PER_RECORD, Options, PartitionScorer
from evenload.scoring import DEFAULT, ScoringConfig, snapshot
from tests.scorer.traffic import batches, pure_fold

T0 = 1_800_000_000_000
INSTANCES = [f"i-{n}" for n in range(6)]


def config_of(_: str) -> ScoringConfig:
    return DEFAULT


def scorer(**more: object) -> PartitionScorer:
    options = {name: more.pop(name) for name in ("instances_max", "heartbeat_ms", "flush_ms") if name in more}
    return PartitionScorer(0, Options(scorer="s", **options), config_of, **more)  # type: ignore[arg-type]


def batch(*events: Event, seq: int = 0, incarnation: int = 7) -> bytes:
    return encode(Batch(v=1, producer="r", incarnation=incarnation, seq=seq, events=list(events)))


def ok(instance: str = "a") -> Event:
    return Outcome(instance=instance, kind="ok", status=200)


def gone(instance: str = "a") -> Event:
    return Membership(instance=instance, change="left")


def one(found: list[SnapshotBatch]) -> SnapshotBatch:
    assert len(found) == 1
    return found[0]


def names(found: list[SnapshotBatch]) -> list[str]:
    return [item.state.instance for part in found for item in part.snapshots]


def log_of(count: int, seed: int = 1) -> list[tuple[int, int, bytes]]:
    traffic = (encode(part) for _, part in batches(seed, INSTANCES, 1))
    return [(offset, T0 + 20 * offset, data) for offset, data in enumerate(itertools.islice(traffic, count))]


# ---- records


def test_states_are_the_pure_fold_of_the_records() -> None:
    part, log = scorer(), log_of(300)
    for offset, at_ms, data in log:
        assert part.on_record(offset, at_ms, data, 0.0) is None
    assert {n: encode(s) for n, s in part.states.items()} == {
        n: encode(s) for n, s in pure_fold(log, config_of).items()
    }
    assert (part.counts.records, part.counts.events, part.counts.duplicates) == (300, 3000, 0)


@pytest.mark.parametrize("crash_at", [1, 57, 140, 299])
def test_a_restart_from_any_checkpoint_ends_with_identical_bytes(crash_at: int) -> None:
    log = log_of(300)
    durable: dict[str, bytes] = {}
    first = scorer()
    for offset, at_ms, data in log[:crash_at]:
        first.on_record(offset, at_ms, data, 0.0)
        if offset % 40 == 0:
            checkpoint = first.checkpoint(0.0, force=True)
            assert checkpoint is not None
            durable.update(checkpoint.states)
            first.acknowledged(checkpoint)
    states = {name: decode_state(data) for name, data in durable.items()}
    second = scorer(states=states, position=max(-1, first.durable - 20))  # a commit may be later than the changelog
    for offset, at_ms, data in log[max(0, first.durable - 19) :]:
        second.on_record(offset, at_ms, data, 0.0)
    want = pure_fold(log, config_of)
    assert {n: encode(s) for n, s in second.states.items()} == {n: encode(s) for n, s in want.items()}


def test_a_record_seen_again_changes_nothing() -> None:
    part = scorer()
    part.on_record(0, T0, batch(ok()), 0.0)
    part.on_record(0, T0, batch(ok()), 0.0)
    assert (part.states["a"].successes, part.counts.records) == (1, 1)


def test_a_batch_sent_twice_counts_as_duplicates() -> None:
    part = scorer()
    part.on_record(0, T0, batch(ok(), ok("b")), 0.0)
    part.on_record(1, T0 + 5, batch(ok(), ok("b")), 0.0)
    assert (part.counts.events, part.counts.duplicates) == (2, 2)
    assert part.states["a"].successes == 1


def test_a_record_that_comes_before_its_turn_is_refused_until_those_before_it_came() -> None:
    part = scorer(position=3)
    assert [part.follows(offset) for offset in (2, 3, 4, 5)] == [True, True, True, False]
    with pytest.raises(AssertionError, match="record 5 came when 4 was due"):
        part.on_record(5, T0, batch(ok()), 0.0)


def test_what_retention_removed_is_counted_and_skipped() -> None:
    part = scorer()
    part.on_record(0, T0, batch(ok()), 0.0)
    part.skip_to(5)
    part.skip_to(2)
    part.on_record(5, T0, batch(ok(), seq=1), 0.0)
    assert (part.counts.missed, part.position) == (4, 5)


@pytest.mark.parametrize(
    ("data", "reason"), [(b"\xc1", "corrupt"), (b"", "corrupt"), (b"\x81\xa1v\x63", "version"), (b"\x90", "invalid")]
)
def test_what_cannot_be_read_goes_to_the_dead_letters_and_the_next_record_is_applied(data: bytes, reason: str) -> None:
    part = scorer(position=3)
    letter = part.on_record(4, T0, data, 0.0)
    assert letter is not None
    assert (letter.topic, letter.partition, letter.offset) == ("evenload.telemetry", 0, 4)
    assert letter.reason.startswith(reason)
    assert (letter.payload, letter.size) == (data, len(data))
    assert part.on_record(5, T0, batch(ok()), 0.0) is None
    assert part.counts.dead_letters == {reason: 1}


def test_a_dead_letter_keeps_a_bounded_part_of_the_record() -> None:
    letter = scorer().on_record(0, T0, b"\xc1" * 900_000, 0.0)
    assert letter is not None
    assert (len(letter.payload), letter.size) == (PAYLOAD_BYTES_MAX, 900_000)


def test_a_record_that_breaks_the_fold_is_a_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    def broken(instance: str) -> ScoringConfig:
        raise ZeroDivisionError(instance)

    part = PartitionScorer(0, Options(), broken)
    letter = part.on_record(0, T0, batch(ok()), 0.0)
    assert letter is not None
    assert letter.reason == "fold: ZeroDivisionError('a')"
    assert "record 0 could not be folded" in caplog.text


def test_instances_beyond_the_bound_are_refused_and_known_ones_go_on() -> None:
    part = scorer(instances_max=2)
    part.on_record(0, T0, batch(ok("a"), ok("b")), 0.0)
    letter = part.on_record(1, T0, batch(ok("a"), ok("c"), ok("d"), seq=1), 0.0)
    assert letter is not None
    assert letter.reason == "too_many_instances: c, d (2 in all)"
    assert part.states["a"].successes == 2
    assert set(part.states) == {"a", "b"}


def test_an_instance_of_another_partition_is_refused() -> None:
    part = scorer(owns=lambda name: name != "stranger")
    letter = part.on_record(0, T0, batch(ok("stranger"), ok("a")), 0.0)
    assert letter is not None
    assert letter.reason.startswith("foreign_instance")
    assert set(part.states) == {"a"}


# ---- time


def test_log_time_goes_on_with_the_clock_and_never_backwards() -> None:
    part = scorer()
    part.on_record(0, T0, batch(ok()), 1_000.0)
    assert part.now_ms(1_250.0) == T0 + 250
    part.on_record(1, T0 + 100, batch(ok(), seq=1), 1_300.0)  # seen late
    assert part.now_ms(1_300.0) == T0 + 250
    assert part.now_ms(1_500.0) == T0 + 300


# ---- snapshots


def test_a_changed_instance_is_published_once_per_flush() -> None:
    part = scorer(flush_ms=100.0)
    part.on_record(0, T0, batch(ok()), 0.0)
    assert names(part.snapshots(0.0)) == ["a"]
    part.on_record(1, T0 + 50, batch(FirstToken(instance="a", ttft_ms=900.0), seq=1), 50.0)
    assert part.snapshots(60.0) == []
    found = one(part.snapshots(100.0))
    assert (found.as_of, found.now_ms) == (1, T0 + 100)
    assert found.snapshots == [snapshot(part.states["a"], T0 + 100)]


def test_small_changes_wait_for_the_heartbeat_which_every_instance_gets_within_2_s() -> None:
    part = scorer()
    part.on_record(0, T0, batch(FirstToken(instance="a", ttft_ms=100.0), ok("b")), 0.0)
    published = {"a": [0.0], "b": [0.0]}
    seq = 0
    for step in range(1, 100):
        now = 100.0 * step
        if step > 60:  # by then the score has risen from warm-up and stays
            seq += 1
            part.on_record(seq, T0 + int(now), batch(FirstToken(instance="a", ttft_ms=100.0), seq=seq), now)
        for name in names(part.snapshots(now)):
            published[name].append(now)
    for at in published.values():
        assert max(later - earlier for earlier, later in itertools.pairwise(at)) <= 2_000.0
        assert len([moment for moment in at if moment > 6_500.0]) <= 3


def test_a_rising_score_is_published_as_it_rises() -> None:
    part = scorer()
    part.on_record(0, T0, batch(ok()), 0.0)
    scores = [item.score for step in range(60) for found in part.snapshots(100.0 * step) for item in found.snapshots]
    assert scores[0] == 30.0
    assert scores[-1] == 100.0
    assert len(scores) > 40


@pytest.mark.parametrize(
    "event",
    [
        Outcome(instance="a", kind="saturated", status=429),
        Outcome(instance="a", kind="http_error", status=500),
        Membership(instance="a", change="not_ready"),
        Membership(instance="a", change="draining"),
        gone(),
        RouterLoad(instance="a", in_flight=3),
        FirstToken(instance="a", ttft_ms=5_000.0),
    ],
)
def test_what_routers_must_know_is_published_at_the_next_flush(event: Event) -> None:
    part = scorer()
    part.on_record(0, T0, batch(ok(), FirstToken(instance="a", ttft_ms=100.0)), 0.0)
    for step in range(100):
        part.snapshots(100.0 * step)
    part.on_record(1, T0 + 9_950, batch(event, seq=1), 9_950.0)
    assert names(part.snapshots(10_100.0)) == ["a"]


def test_the_first_record_has_every_producer_and_later_ones_those_heard_since() -> None:
    known = InstanceState(instance="a", as_of=9, log_ms=T0, watermarks={1: 4, 2: 8})
    other = InstanceState(instance="b", as_of=8, log_ms=T0, watermarks={1: 3, 3: 1})
    part = scorer(states={"a": known, "b": other}, position=9)
    assert one(part.snapshots(0.0)).sequences == {1: 4, 2: 8, 3: 1}
    part.on_record(10, T0 + 90, batch(Outcome(instance="a", kind="http_error"), incarnation=2, seq=9), 90.0)
    assert one(part.snapshots(200.0)).sequences == {2: 9}


def test_nothing_is_published_before_all_that_some_state_includes_was_read_again() -> None:
    states = {"a": InstanceState(instance="a", as_of=2, log_ms=T0, watermarks={7: 2})}
    part = scorer(states=states, position=0, caught_up_at=2)
    assert part.snapshots(0.0) == []
    part.on_record(1, T0, batch(ok("b"), seq=1), 0.0)
    assert part.snapshots(100.0) == []
    part.on_record(2, T0, batch(ok("b"), ok("a"), seq=2), 0.0)
    assert sorted(names(part.snapshots(200.0))) == ["a", "b"]


def test_a_record_that_kafka_did_not_take_is_due_again() -> None:
    part = scorer()
    part.on_record(0, T0, batch(ok()), 0.0)
    lost = one(part.snapshots(0.0))
    part.on_record(1, T0, batch(ok(), seq=1, incarnation=9), 0.0)
    part.unpublished(lost)
    again = one(part.snapshots(10.0))
    assert (again.sequences, names([again])) == ({7: 0, 9: 1}, ["a"])


def test_many_instances_are_spread_over_records_of_bounded_size() -> None:
    part = scorer()
    events = [ok(f"i-{n}") for n in range(2 * SNAPSHOTS_PER_RECORD + 1)]
    part.on_record(0, T0, batch(*events), 0.0)
    found = part.snapshots(0.0)
    assert [len(record.snapshots) for record in found] == [SNAPSHOTS_PER_RECORD, SNAPSHOTS_PER_RECORD, 1]
    assert all(record.sequences == {7: 0} for record in found)
    assert max(len(encode(record)) for record in found) < 1_000_000


# ---- checkpoints


def test_a_checkpoint_has_what_changed_at_most_once_a_second() -> None:
    part = scorer()
    part.on_record(0, T0, batch(ok("a"), ok("b")), 0.0)
    first = part.checkpoint(0.0)
    assert first is not None
    assert (first.through, sorted(first.states)) == (0, ["a", "b"])
    assert first.states["a"] == encode(part.states["a"])
    part.acknowledged(first)
    part.on_record(1, T0, batch(ok("b"), seq=1), 0.0)
    assert part.checkpoint(999.0) is None
    second = part.checkpoint(1_000.0)
    assert second is not None
    assert (second.through, sorted(second.states), part.durable) == (1, ["b"], 0)


def test_nothing_new_means_no_checkpoint_and_dead_letters_mean_an_empty_one() -> None:
    part = scorer()
    part.on_record(0, T0, batch(ok()), 0.0)
    first = part.checkpoint(0.0)
    assert first is not None
    part.acknowledged(first)
    assert part.checkpoint(1_000.0) is None
    part.on_record(1, T0, b"\xc1", 0.0)
    empty = part.checkpoint(2_000.0)
    assert empty is not None
    assert (empty.through, empty.records()) == (1, [])


def test_a_checkpoint_that_failed_is_due_again() -> None:
    part = scorer()
    part.on_record(0, T0, batch(ok()), 0.0)
    failed = part.checkpoint(0.0)
    assert failed is not None
    part.unacknowledged(failed)
    again = part.checkpoint(1_000.0)
    assert again is not None
    assert again.states == failed.states


def test_an_instance_that_left_is_remembered_for_its_grave_and_then_gets_a_tombstone() -> None:
    part = scorer()
    part.on_record(0, T0, batch(ok("a"), ok("b")), 0.0)
    part.on_record(1, T0, batch(gone("a"), seq=1), 0.0)
    part.on_record(2, T0 + 1, batch(ok("b"), seq=2), 0.0)
    early = part.checkpoint(0.0)
    assert early is not None
    part.acknowledged(early)
    assert "a" in names(part.snapshots(0.0))
    part.on_record(3, T0 + DEFAULT.grave_ms + 1, batch(ok("b"), seq=3), 0.0)
    late = part.checkpoint(5_000.0)
    assert late is not None
    assert late.tombstones == ("a",)
    assert [name for name, _ in late.records()] == ["a", "b"]
    assert "a" not in part.states
    assert "a" not in names(part.snapshots(60_000.0))


def test_a_tombstone_is_never_the_last_record_of_the_changelog() -> None:
    part = scorer()
    part.on_record(0, T0, batch(ok("a"), ok("b")), 0.0)
    part.on_record(1, T0, batch(gone("a"), seq=1), 0.0)
    part.on_record(2, T0, batch(ok("b"), seq=2), 0.0)
    first = part.checkpoint(0.0)
    assert first is not None
    part.acknowledged(first)
    late = part.checkpoint(float(DEFAULT.grave_ms))
    assert late is not None
    assert [(name, data is None) for name, data in late.records()] == [("a", True), ("b", False)]


def test_the_newest_state_stays_though_its_instance_left_long_ago() -> None:
    part = scorer()
    part.on_record(0, T0, batch(gone("a")), 0.0)
    part.on_record(1, T0, batch(gone("b"), seq=1), 0.0)
    checkpoint = part.checkpoint(float(DEFAULT.grave_ms))
    assert checkpoint is not None
    assert checkpoint.tombstones == ("a",)
    assert list(checkpoint.states) == ["b"]


def test_an_instance_that_comes_back_after_its_tombstone_is_not_buried_again() -> None:
    part = scorer()
    part.on_record(0, T0, batch(gone("a"), ok("b")), 0.0)
    part.on_record(1, T0 + DEFAULT.grave_ms, batch(ok("b"), seq=1), 0.0)
    failed = part.checkpoint(0.0)
    assert failed is not None
    part.on_record(2, T0 + DEFAULT.grave_ms, batch(ok("a"), seq=2), 0.0)
    part.unacknowledged(failed)
    again = part.checkpoint(1_000.0)
    assert again is not None
    assert (again.tombstones, sorted(again.states)) == ((), ["a", "b"])


def test_a_hidden_state_is_written_anew_once_everything_was_read_again() -> None:
    states = {name: InstanceState(instance=name, as_of=1, log_ms=T0) for name in ("a", "b")}
    part = scorer(states=states, position=1, caught_up_at=3, rewrite=frozenset({"a"}))
    part.on_record(2, T0, batch(ok("b")), 0.0)
    early = part.checkpoint(0.0)
    assert early is not None
    assert list(early.states) == ["b"]
    part.acknowledged(early)
    part.on_record(3, T0, b"\xc1", 0.0)
    late = part.checkpoint(1_000.0)
    assert late is not None
    assert (late.through, sorted(late.states)) == (3, ["a", "b"])
