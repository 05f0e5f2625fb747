"""How many retries a pool may make."""

from evenload.routing.retry_budget import SAVED_MAX, RetryBudget


def taken(budget: RetryBudget, now_ms: float) -> int:
    count = 0
    while budget.take(now_ms):
        count += 1
    return count


def test_a_pool_starts_with_what_it_can_save_and_refusals_are_counted() -> None:
    budget = RetryBudget(share=0.0, per_s_min=0.0)
    assert taken(budget, 0.0) == SAVED_MAX
    assert (budget.take(1e9), budget.withheld) == (False, 2)


def test_requests_earn_a_share_of_a_retry_each() -> None:
    budget = RetryBudget(share=0.25, per_s_min=0.0)
    taken(budget, 0.0)
    for _ in range(40):
        budget.earn()
    assert taken(budget, 0.0) == 10


def test_a_quiet_pool_earns_by_time() -> None:
    budget = RetryBudget(share=0.0, per_s_min=10.0)
    taken(budget, 0.0)
    assert taken(budget, 1_500.0) == 15


def test_what_is_saved_has_a_bound() -> None:
    budget = RetryBudget(share=1.0, per_s_min=10.0)
    taken(budget, 0.0)
    for _ in range(1_000):
        budget.earn()
    assert taken(budget, 1e9) == SAVED_MAX
