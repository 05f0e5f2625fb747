"""The published formula against values computed by hand."""

import math
from typing import Any

import pytest

from evenload.scoring import ScoringConfig, health_score

ABS = 1e-9  # the values below are exact decimals, the code's are doubles


@pytest.mark.parametrize(
    ("ewma_ttft_ms", "error_ratio", "waiting", "kv_usage", "expected"),
    [
        # nothing known or nothing wrong
        (None, 0.0, None, None, 100.0),
        (0.0, 0.0, 0, 0.0, 100.0),
        # latency: 100 * (1 - 0.35 * (ewma / 2000)^2), saturating at 2000 ms
        (200.0, 0.0, None, None, 99.65),
        (500.0, 0.0, None, None, 97.8125),
        (1000.0, 0.0, None, None, 91.25),
        (1500.0, 0.0, None, None, 80.3125),
        (2000.0, 0.0, None, None, 65.0),
        (14_000.0, 0.0, None, None, 65.0),
        (1e9, 0.0, None, None, 65.0),
        # errors: 100 * (1 - 0.40 * min(1, 5 * ratio)), saturating at 0.2
        (None, 0.05, None, None, 90.0),
        (None, 0.1, None, None, 80.0),
        (None, 0.2, None, None, 60.0),
        (None, 0.5, None, None, 60.0),
        (None, 1.0, None, None, 60.0),
        # waiting: 100 * (1 - 0.25 * min(1, waiting / 30))
        (None, 0.0, 3, None, 97.5),
        (None, 0.0, 15, None, 87.5),
        (None, 0.0, 30, None, 75.0),
        (None, 0.0, 300, None, 75.0),
        # KV: nothing up to 0.80, then linear up to a full cache
        (None, 0.0, None, 0.5, 100.0),
        (None, 0.0, None, 0.8, 100.0),
        (None, 0.0, None, 0.85, 93.75),
        (None, 0.0, None, 0.9, 87.5),
        (None, 0.0, None, 1.0, 75.0),
        # the worse of the two counts, not their sum
        (None, 0.0, 15, 0.9, 87.5),
        (None, 0.0, 6, 0.9, 87.5),
        (None, 0.0, 27, 0.9, 77.5),
        (None, 0.0, 0, 1.0, 75.0),
        # all together
        (1000.0, 0.1, 15, 0.8, 58.75),
        (1000.0, 0.1, 15, 0.95, 52.5),
        (2000.0, 0.2, 0, 0.0, 25.0),
        (2000.0, 0.2, 30, 1.0, 0.0),
        (1e9, 1.0, 10**9, 1.0, 0.0),
    ],
)
def test_scores_as_computed_by_hand(
    ewma_ttft_ms: float | None, error_ratio: float, waiting: int | None, kv_usage: float | None, expected: float
) -> None:
    assert health_score(ewma_ttft_ms, error_ratio, waiting, kv_usage) == pytest.approx(expected, abs=ABS)


@pytest.mark.parametrize("value", [math.nan, -0.001, -math.inf])
@pytest.mark.parametrize("name", ["ewma_ttft_ms", "error_ratio", "waiting", "kv_usage"])
def test_a_negative_argument_or_one_that_is_not_a_number_is_named_and_refused(name: str, value: float) -> None:
    arguments: dict[str, Any] = {"ewma_ttft_ms": 0.0, "error_ratio": 0.0, "waiting": 0.0, "kv_usage": 0.0, name: value}
    with pytest.raises(ValueError, match=name):
        health_score(**arguments)


@pytest.mark.parametrize("name", ["error_ratio", "kv_usage"])
@pytest.mark.parametrize("value", [1.0001, math.inf])
def test_a_share_above_one_is_named_and_refused(name: str, value: float) -> None:
    arguments: dict[str, Any] = {"ewma_ttft_ms": 0.0, "error_ratio": 0.0, "waiting": 0.0, "kv_usage": 0.0, name: value}
    with pytest.raises(ValueError, match=f"{name}.*at most 1"):
        health_score(**arguments)


def test_the_constants_of_a_pool_are_used() -> None:
    patient = ScoringConfig(ttft_limit_ms=20_000.0, waiting_limit=100.0, kv_threshold=0.5, error_gain=1.0)
    assert health_score(10_000.0, 0.0, None, None, patient) == pytest.approx(91.25, abs=ABS)
    assert health_score(None, 0.5, None, None, patient) == pytest.approx(80.0, abs=ABS)
    assert health_score(None, 0.0, 50, None, patient) == pytest.approx(87.5, abs=ABS)
    assert health_score(None, 0.0, None, 0.75, patient) == pytest.approx(87.5, abs=ABS)


def test_weights_may_sum_to_less_than_one_and_then_the_worst_score_is_above_zero() -> None:
    mild = ScoringConfig(ttft_weight=0.1, error_weight=0.2, queue_weight=0.3)
    assert health_score(1e9, 1.0, 1e9, 1.0, mild) == pytest.approx(40.0, abs=ABS)
