"""Goodput capacity between the loads that were run."""

from math import isnan

import pytest

from evenload.bench.evidence import Evidence
from evenload.bench.knee import knee, loads, relative_capacity
from tests.bench.made import cell

CELLS = ("s2-u80", "s2-u90", "s2-u100")
SEEDS = (1,)


def evidence(**attained: tuple[float, float, float]) -> Evidence:
    """Attainment at 80, 90 and 100 requests/s per policy, named with underscores."""
    return Evidence(
        [
            cell(
                name,
                policy.replace("_", "-"),
                attainment=share,
                goodput_rps=share * rate,
                effective_tps=9 * share * rate,
            )
            for policy, shares in attained.items()
            for name, rate, share in zip(CELLS, (80.0, 90.0, 100.0), shares, strict=True)
        ]
    )


def test_the_knee_lies_where_attainment_falls_below_99_percent() -> None:
    found = knee(loads(evidence(random=(1.0, 1.0, 0.98)), CELLS, "random"), SEEDS)
    assert (found.goodput_rps, found.effective_tps) == pytest.approx((94.0, 846.0))
    assert found.bound == "within"


def test_a_policy_that_never_falls_or_fell_before_is_only_bounded() -> None:
    both = evidence(random=(1.0, 1.0, 1.0), health=(0.5, 0.5, 0.5))
    assert knee(loads(both, CELLS, "random"), SEEDS).describe() == "at least 100 req/s"
    assert knee(loads(both, CELLS, "health"), SEEDS).describe() == "under 40 req/s"
    with pytest.raises(ValueError, match="no loads"):
        knee([], SEEDS)


@pytest.mark.parametrize(
    ("mine", "other", "expected"),
    [
        ((1.0, 1.0, 1.0), (1.0, 1.0, 0.98), 100.0 / 94.0),
        ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), 1.0),
        ((0.5, 0.5, 0.5), (1.0, 1.0, 0.98), None),  # mine is unknown
        ((1.0, 1.0, 0.98), (1.0, 1.0, 1.0), None),  # the other's is
    ],
)
def test_a_ratio_rests_on_capacities_that_are_known(
    mine: tuple[float, float, float], other: tuple[float, float, float], expected: float | None
) -> None:
    found = relative_capacity(evidence(random=mine, health=other), CELLS, "goodput_rps", "random", "health")(SEEDS)
    assert isnan(found) if expected is None else found == pytest.approx(expected)
