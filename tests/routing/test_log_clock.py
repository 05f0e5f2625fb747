from evenload.routing import LogClock


def test_it_runs_on_from_the_first_guess_until_anchored() -> None:
    clock = LogClock(50_000, 10.0)
    assert clock.now_ms(1010.0) == 51_000
    assert not clock.anchored


def test_the_first_snapshot_sets_it() -> None:
    clock = LogClock(50_000, 0.0)
    clock.anchor(50_400, 0.0)
    assert clock.now_ms(100.0) == 50_500


def test_the_least_delayed_anchor_leads_and_is_let_go_slowly() -> None:
    clock = LogClock(0, 0.0)
    clock.anchor(1000, 1000.0)
    clock.anchor(2050, 2000.0)  # 50 ms fresher
    assert clock.now_ms(2000.0) == 2050
    clock.anchor(2900, 3000.0)  # 150 ms more delayed: mostly ignored
    assert clock.now_ms(3000.0) == 3049


def test_a_jump_of_an_hour_is_followed_at_once_both_ways() -> None:
    clock = LogClock(0, 0.0)
    clock.anchor(10_000_000, 0.0)
    clock.anchor(13_600_000, 0.0)
    assert clock.now_ms(5.0) == 13_600_005
    clock.anchor(10_000_000, 0.0)
    assert clock.now_ms(5.0) == 10_000_005
