from hypothesis import given
from hypothesis import strategies as st

from evenload.routing import LeaseBook


def test_in_flight_lasts_until_release_and_awaiting_until_the_first_token() -> None:
    """F06."""
    book = LeaseBook()
    lease = book.book("a", 70, 0.0)
    assert book.counts("a").values() == (1, 1, 70, 70)
    assert lease.first_token()
    assert book.counts("a").values() == (1, 0, 70, 0)
    assert lease.release()
    assert book.counts("a").values() == (0, 0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["token", "release"]))))
def test_whatever_the_order_each_lease_is_released_exactly_once(calls: list[tuple[int, str]]) -> None:
    """F04."""
    book = LeaseBook()
    leases = [book.book("a", 10, 0.0) for _ in range(5)]
    for number, call in calls:
        _ = leases[number].first_token() if call == "token" else leases[number].release()
    held = sum(lease.held for lease in leases)
    awaiting = sum(lease.awaiting for lease in leases)
    assert book.counts("a").values() == (held, awaiting, 10 * held, 10 * awaiting)
    assert sum(lease.release() for lease in leases) == held
    assert book.in_flight == 0


def test_waiting_requests_are_overdue_at_250_ms_and_at_each_doubling() -> None:
    book = LeaseBook()
    lease = book.book("a", 10, 1000.0)
    seen = [age for now in range(1000, 3100, 10) for _, age in book.overdue(float(now))]
    assert seen == [250.0, 500.0, 1000.0, 2000.0]
    assert book.overdue(3600.0) == []
    lease.first_token()
    assert book.overdue(99_999.0) == []


def test_a_late_look_tells_the_true_age_once() -> None:
    book = LeaseBook()
    book.book("a", 10, 0.0)
    assert [age for _, age in book.overdue(1100.0)] == [1100.0]
    assert [age for _, age in book.overdue(2000.0)] == [2000.0]


def test_loads_are_reported_on_a_change_of_a_fifth_and_every_second_while_not_zero() -> None:
    book = LeaseBook()
    leases = [book.book("a", 10, 0.0) for _ in range(10)]
    for lease in leases:
        lease.first_token()
    assert [report.in_flight for report in book.reports(0.0)] == [10]
    extra = book.book("a", 10, 1.0)
    extra.first_token()
    assert book.reports(500.0) == []  # one more of ten is not worth telling
    assert [report.in_flight for report in book.reports(1000.0)] == [11]
    for lease in [*leases, extra]:
        lease.release()
    assert [report.in_flight for report in book.reports(1001.0)] == [0]
    assert book.reports(9999.0) == []


def test_a_place_that_lingers_holds_no_prompt() -> None:
    book = LeaseBook()
    refused, other = book.book("a", 100_000, 0.0), book.book("a", 10, 0.0)
    refused.linger()
    refused.linger()
    assert book.counts("a").values() == (2, 1, 10, 10)
    assert refused.release()
    refused.linger()
    assert other.release()
    assert book.counts("a").values() == (0, 0, 0, 0)
