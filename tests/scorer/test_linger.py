"""The advised linger keeps records per second near the target."""

import pytest

from evenload.scorer.linger import LingerAdvice


def advise(advice: LingerAdvice, producers: int, seconds: int) -> int:
    """Let producers follow the advice, with a clock of 10 ms steps, and return the last second's records."""
    owed, records = 0.0, 0
    for step in range(seconds * 100):
        if step % 100 == 0:
            records = 0
        owed += producers * 10 / advice.linger_ms
        while owed >= 1:
            advice.record()
            records += 1
            owed -= 1
        advice.update(10_000.0 + step * 10, 1_000_000 + step * 10)
    return records


@pytest.mark.parametrize("producers", [20, 50, 90])
def test_many_producers_are_slowed_down_to_the_target(producers: int) -> None:
    assert advise(LingerAdvice(200), producers, 10) == pytest.approx(200, rel=0.1)


def test_few_producers_may_send_at_the_shortest_linger() -> None:
    advice = LingerAdvice(200)
    advise(advice, 1, 10)
    assert advice.linger_ms == 20


def test_the_advice_has_a_longest_linger() -> None:
    advice = LingerAdvice(200)
    advise(advice, 5_000, 10)
    assert advice.linger_ms == 500


def test_one_correction_at_most_doubles_or_halves() -> None:
    advice = LingerAdvice(200, linger_ms=100)
    advice.update(0.0, 1_000)
    for _ in range(100_000):
        advice.record()
    advice.update(1_000.0, 2_000)
    assert advice.linger_ms == 200
    advice.update(2_000.0, 3_000)
    assert advice.linger_ms == 100


def test_working_off_a_backlog_is_not_taken_for_a_flood() -> None:
    advice = LingerAdvice(200, linger_ms=100)
    advice.update(0.0, 1_000)
    for _ in range(5_000):  # 25 s of log at the target rate, read within a second
        advice.record()
    advice.update(1_000.0, 26_000)
    assert advice.linger_ms == 100


def test_a_worker_that_is_behind_advises_by_what_arrives_not_by_what_it_manages() -> None:
    advice = LingerAdvice(200, linger_ms=100)
    advice.update(0.0, 1_000)
    for second in range(1, 6):  # of 400 records a second it applies 100
        for _ in range(100):
            advice.record()
        advice.update(second * 1_000.0, 1_000 + second * 250)
    assert advice.linger_ms >= 200


def test_a_burst_before_silence_is_not_taken_for_a_flood() -> None:
    advice = LingerAdvice(200, linger_ms=100)
    advice.update(0.0, 1_000)
    for _ in range(100):
        advice.record()
    advice.update(1_030.0, 1_006)
    assert advice.linger_ms <= 100
