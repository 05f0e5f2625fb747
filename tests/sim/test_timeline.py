"""Virtual time: the order of what happens."""

from evenload.sim.timeline import Timeline


def test_things_happen_in_order_of_time_and_equal_times_in_the_order_they_were_asked_for() -> None:
    timeline, seen = Timeline(), list[str]()
    timeline.after(5.0, seen.append, "patient at 5")
    timeline.at(5.0, seen.append, "second at 5")
    timeline.after(5.0, seen.append, "third at 5")
    timeline.at(2.0, seen.append, "at 2")
    timeline.after(1.0, seen.append, "at 1")
    timeline.run(10.0)
    assert seen == ["at 1", "at 2", "patient at 5", "second at 5", "third at 5"]
    assert timeline.happened == 5


def test_what_shares_a_delay_happens_after_it_whenever_it_was_asked_for() -> None:
    timeline, seen = Timeline(), list[tuple[str, float]]()

    def note(name: str) -> None:
        seen.append((name, timeline.now_ms))

    for at_ms in (0.0, 1.0, 7.0):
        timeline.at(at_ms, lambda name: timeline.after(3.0, note, name), f"asked at {at_ms:g}")
    timeline.run(100.0)
    assert seen == [("asked at 0", 3.0), ("asked at 1", 4.0), ("asked at 7", 10.0)]
