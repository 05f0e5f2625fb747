"""Statistics over seeds."""

from math import inf, isnan, nan

from evenload.bench.evidence import Evidence
from tests.bench.made import cell


def test_ratios_are_paired_by_seed_and_seeds_without_a_figure_are_left_out() -> None:
    found = Evidence(
        [
            cell("s1-u85", "random", seed, ttft_p99_ms=value)
            for seed, value in ((1, 10.0), (2, 40.0), (3, nan), (4, 1.0))
        ]
        + [cell("s1-u85", "health", seed, ttft_p99_ms=value) for seed, value in ((1, 20.0), (2, 80.0), (3, 1.0))]
    )
    pair = ("s1-u85", "random"), ("s1-u85", "health")
    assert found.seeds(*pair) == (1, 2, 3)
    ratio = found.ratio((*pair[0], "ttft_p99_ms"), (*pair[1], "ttft_p99_ms"))
    measured = found.measure(ratio, found.seeds(*pair))
    assert (measured.value, measured.low, measured.high) == (0.5, 0.5, 0.5)
    assert isnan(found.median("s1-u85", "nobody", "ttft_p99_ms")((1, 2)))


def test_the_interval_is_the_same_each_time_and_holds_the_median() -> None:
    found = Evidence([cell("s1-u85", "random", seed, ttft_p99_ms=100.0 + seed) for seed in range(10)])
    statistic = found.median("s1-u85", "random", "ttft_p99_ms")
    first, again = (found.measure(statistic, range(10)) for _ in range(2))
    assert first == again
    assert 100.0 <= first.low < first.value < first.high <= 109.0


def test_infinite_figures_are_figures() -> None:
    found = Evidence([cell("s1-u85", "random", seed, ttft_p99_ms=inf) for seed in (1, 2, 3)])
    assert found.measure(found.median("s1-u85", "random", "ttft_p99_ms"), (1, 2, 3)).value == inf
