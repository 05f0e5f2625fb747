"""Counters and histograms of the hot path: plain numbers in a dictionary, which the registry reads when it is asked.

The client library's own take a lock per value and two look-ups per label set, 15 us a request; one event loop needs
neither.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Labels = tuple[str, ...]
_T = TypeVar("_T")


class Counts(Collector):
    """A counter per label set.

    Args:
        name: without `_total`.
        about: for people.
        labels: names.
    """

    def __init__(self, name: str, about: str, labels: Sequence[str]) -> None:
        self._family = (name, about, list(labels))
        self._values: dict[Labels, int] = {}

    def add(self, labels: Labels) -> None:
        """One more."""
        self._values[labels] = self._values.get(labels, 0) + 1

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Forget the sets that have these labels."""
        self._values = _without(self._values, self._family[2], labels)

    def collect(self) -> Iterable[Metric]:
        """Give the registry all values."""
        name, about, labels = self._family
        family = CounterMetricFamily(name, about, labels=labels)
        for values, count in self._values.items():
            family.add_metric(values, count)
        yield family


class Histograms(Collector):
    """A histogram per label set.

    Args:
        name: with its unit.
        about: for people.
        labels: names.
        bounds: upper ends of the buckets, rising, without infinity.
    """

    def __init__(self, name: str, about: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._family = (name, about, list(labels))
        self._bounds = bounds
        self._names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._values: dict[Labels, tuple[list[int], list[float]]] = {}  # counts per bucket; their sum in a list of one

    def add(self, labels: Labels, value: float) -> None:
        """One more observation."""
        found = self._values.get(labels)
        if found is None:
            found = self._values[labels] = ([0] * len(self._names), [0.0])
        found[0][bisect_left(self._bounds, value)] += 1
        found[1][0] += value

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Forget the sets that have these labels."""
        self._values = _without(self._values, self._family[2], labels)

    def collect(self) -> Iterable[Metric]:
        """Give the registry all buckets, each with those below it."""
        name, about, labels = self._family
        family = HistogramMetricFamily(name, about, labels=labels)
        for values, (counts, (total,)) in self._values.items():
            below = 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip(self._names, counts, strict=True):
                below += count
                buckets.append((bound, below))
            family.add_metric(values, buckets, total)
        yield family


def _without(values: dict[Labels, _T], names: Sequence[str], labels: Mapping[str, str]) -> dict[Labels, _T]:
    wanted = labels.items()
    return {key: value for key, value in values.items() if not wanted <= dict(zip(names, key, strict=True)).items()}
