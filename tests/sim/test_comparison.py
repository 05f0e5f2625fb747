"""Comparing: paired ratios, intervals, regret, quantiles, with infinite figures."""

from math import inf, isnan

import pytest

from evenload.sim.comparison import median, paired_ratio, ratio, regret
from evenload.sim.metrics import quantile


def test_the_ratio_is_paired_by_seed() -> None:
    mine = {seed: 50.0 * seed for seed in range(1, 11)}
    base = {seed: 100.0 * seed for seed in range(1, 11)}
    found = paired_ratio(mine, base)
    assert (found.median, found.low, found.high, found.pairs) == (0.5, 0.5, 0.5, 10)
    assert found.verdict == "better"


def test_a_difference_within_ten_per_cent_is_a_tie() -> None:
    base = dict.fromkeys(range(10), 100.0)
    assert paired_ratio(dict.fromkeys(range(10), 95.0), base).verdict == "tie"
    assert paired_ratio(dict.fromkeys(range(10), 120.0), base).verdict == "worse"
    assert paired_ratio({}, base).verdict == "none"


def test_the_interval_holds_the_median_and_is_repeatable() -> None:
    mine = {seed: float(80 + (7 * seed) % 31) for seed in range(10)}
    base = dict.fromkeys(range(10), 100.0)
    found = paired_ratio(mine, base)
    assert found.low <= found.median <= found.high
    assert found == paired_ratio(mine, base)


def test_infinite_figures_compare() -> None:
    assert ratio(inf, inf) == 1.0
    assert ratio(inf, 5.0) == inf
    assert ratio(5.0, inf) == 0.0
    assert median([1.0, inf, inf]) == inf
    assert isnan(median([]))


def test_regret_is_0_at_the_oracle_and_1_at_least_connections() -> None:
    assert regret(100.0, 500.0, 100.0) == 0.0
    assert regret(500.0, 500.0, 100.0) == 1.0
    assert regret(200.0, 500.0, 100.0) == pytest.approx(0.25)
    assert isnan(regret(100.0, 105.0, 100.0)), "no room between oracle and least-connections"


def test_quantiles_are_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (50.0, 99.0, 100.0)
    assert quantile([*values[:-2], inf, inf], 0.99) == inf
