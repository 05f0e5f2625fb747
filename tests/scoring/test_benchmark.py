"""The benchmark runs, so that it does not rot; its figures are for people."""

from benchmarks.scoring import bench


def test_the_scoring_benchmark_measures_every_case() -> None:
    figures = bench.measure(event_count=500, rounds=1)
    assert set(figures) == {"naive", "apply", "apply_censored", "fold", "fold_with_decode", "snapshot"}
    assert all(row["per_s"] > 0 for row in figures.values())
