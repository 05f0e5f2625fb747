"""A hanging worker is told from one that waits for Kafka."""

from evenload.scorer.watchdog import Watchdog


def look(
    watchdog: Watchdog,
    now_s: float,
    behind: dict[int, int] | None = None,
    *,
    position: int = 10,
    reachable: bool = True,
    recovered: bool = True,
    signs_of_life: int = 0,
    reading: bool = False,
) -> str | None:
    return watchdog.look(
        now_s * 1000,
        reachable=reachable,
        behind=behind,
        positions={2: position},
        recovered=recovered,
        signs_of_life=signs_of_life,
        reading=reading,
    )


def test_a_partition_that_is_behind_and_stands_still_for_15_s_ends_the_worker() -> None:
    watchdog = Watchdog(0.0)
    assert [look(watchdog, at, {2: 5}) for at in (0, 5, 10, 14.9)] == [None] * 4
    assert watchdog.standing(14_900.0, 1_500.0) == [2]
    assert look(watchdog, 15, {2: 7}) == "partition 2 is 7 records behind and has stood still for 15 s"


def test_a_partition_may_wait_longer_for_its_turn_while_others_get_on() -> None:
    watchdog = Watchdog(0.0)

    def look_at_two(now_s: int) -> str | None:
        return watchdog.look(
            now_s * 1000.0,
            reachable=True,
            behind={1: 500, 2: 500},
            positions={1: now_s, 2: 10},
            recovered=True,
            signs_of_life=0,
        )

    assert [look_at_two(at) for at in range(0, 60, 2)] == [None] * 30
    assert look_at_two(60) == "partition 2 is 500 records behind and has stood still for 60 s"


def test_progress_and_an_empty_log_are_fine() -> None:
    watchdog = Watchdog(0.0)
    assert [look(watchdog, at, {2: 5}, position=at) for at in range(0, 60, 5)] == [None] * 12
    assert [look(watchdog, at, {2: 0}, position=99) for at in range(60, 120, 5)] == [None] * 12
    assert watchdog.standing(115_000.0, 1_500.0) == []


def test_a_worker_waits_for_a_kafka_that_is_away_without_end() -> None:
    watchdog = Watchdog(0.0)
    assert look(watchdog, 0, {2: 5}) is None
    assert [look(watchdog, at, None, reachable=False) for at in range(2, 600, 2)] == [None] * 299
    assert look(watchdog, 600, {2: 5}) is None


def test_a_client_without_answers_beside_a_kafka_that_answers_ends_the_worker() -> None:
    watchdog = Watchdog(0.0)
    assert [look(watchdog, at, None) for at in (0, 10, 29)] == [None] * 3
    assert look(watchdog, 30, None) == "the worker has waited for an answer of Kafka for 30 s"


def test_a_recovery_that_gets_on_may_take_long_and_one_that_does_not_ends_the_worker() -> None:
    watchdog = Watchdog(0.0)
    assert [look(watchdog, at, recovered=False, signs_of_life=at) for at in range(0, 300, 10)] == [None] * 30
    assert look(watchdog, 319, recovered=False, signs_of_life=290) is None
    assert look(watchdog, 320, recovered=False, signs_of_life=290) is not None


def test_a_recovery_that_reads_states_and_gets_none_ends_the_worker_sooner() -> None:
    watchdog = Watchdog(0.0)
    assert [look(watchdog, at, recovered=False, signs_of_life=at, reading=True) for at in range(0, 90, 9)] == [
        None
    ] * 10
    assert look(watchdog, 90, recovered=False, signs_of_life=81, reading=True) is None
    assert look(watchdog, 91, recovered=False, signs_of_life=81, reading=True) is not None
