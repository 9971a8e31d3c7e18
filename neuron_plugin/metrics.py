"""The metrics of both daemons: a table, counts in plain numbers, and one way to show them.

Counting stands apart from showing: to count is to add to a number, and the metrics library is loaded only to show.
Gauges are read from the state at each scrape, so a node, pod or device that is gone leaves no series behind. The labels
of counters have few values, which stay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric

BOUNDS_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the buckets of every histogram: an Allocate takes less than 1 ms, a preference that waits seconds."""

MetricRow = tuple[str, Sequence[str], str]
"""A metric's kind (``counter``, ``gauge`` or ``histogram``), labels and meaning."""


@dataclass
class Latencies:
    """How long something took, as a histogram in seconds."""

    sum_seconds: float = 0.0
    _buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SECONDS) + 1))

    def observe(self, seconds: float) -> None:
        """Add one."""
        self._buckets[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """Upper bound and how many were not above it, as Prometheus has it; the last bound is ``+Inf``."""
        so_far = 0
        for bound, count in zip((*map(str, BOUNDS_SECONDS), "+Inf"), self._buckets, strict=True):
            so_far += count
            yield bound, so_far


Samples = Mapping[tuple[str, ...], float | Latencies]
"""The samples of one metric by the values of its labels, in the order of the table."""


@dataclass(frozen=True, slots=True)
class Table:
    """The metrics of a daemon, by their names without the ``prefix`` that all of them have."""

    prefix: str
    rows: Mapping[str, MetricRow]

    def families(self, samples: Mapping[str, Samples]) -> Iterator[Metric]:
        """Samples as the metrics library has them. A metric without a sample is left out.

        Raises:
            KeyError: the table has no metric of a name.
        """
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        plain = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        for name, by_labels in samples.items():
            kind, labels, meaning = self.rows[name]
            numbers = plain.get(kind, GaugeMetricFamily)(self.prefix + name, meaning, labels=labels)
            histogram = HistogramMetricFamily(self.prefix + name, meaning, labels=labels)
            for values, sample in by_labels.items():
                if isinstance(sample, Latencies):
                    histogram.add_metric(values, list(sample.cumulative()), sample.sum_seconds)
                else:
                    numbers.add_metric(values, sample)
            if by_labels:
                yield histogram if kind == "histogram" else numbers


class MetricCounts:
    """Numbers that the parts of a daemon write: counters, histograms, and gauges that only the writer knows.

    ``counts[name]`` are the samples of a counter or gauge. Reflectors write here as their observer. The metrics for
    that are ``lists_total`` and ``watch_restarts_total``, with ``reflectors`` in front.

    Raises:
        KeyError: the table has no metric of this name and kind.
    """

    def __init__(self, table: Table, reflectors: str = "") -> None:
        self._reflectors = reflectors
        kinds = {name: kind for name, (kind, _, _) in table.rows.items()}
        self._numbers = {name: Counter[tuple[str, ...]]() for name, kind in kinds.items() if kind != "histogram"}
        self._latencies = {
            name: defaultdict[tuple[str, ...], Latencies](Latencies)
            for name, kind in kinds.items()
            if kind == "histogram"
        }
        for name, (kind, labels, _) in table.rows.items():
            if kind == "counter" and not labels:
                self._numbers[name][()] = 0  # so that its first rise shows

    def __getitem__(self, name: str) -> Mapping[tuple[str, ...], float]:
        return self._numbers[name]

    def add(self, name: str, *labels: str, count: int = 1) -> None:
        """Count ``count`` more."""
        self._numbers[name][labels] += count

    def set(self, name: str, *labels: str, value: int) -> None:
        """Replace the value of a gauge."""
        self._numbers[name][labels] = value

    def observe(self, name: str, *labels: str, seconds: float) -> None:
        """Add to a histogram."""
        self._latencies[name][labels].observe(seconds)

    def samples(self) -> dict[str, Samples]:
        """A copy of everything that was written, for a scrape in another thread."""
        numbers = {name: dict(values) for name, values in self._numbers.items()}
        return {**numbers, **{name: dict(values) for name, values in self._latencies.items()}}

    def listed(self, kind: str, records: int, seconds: float) -> None:  # noqa: ARG002 - the reflector's protocol
        """A complete list is in."""
        self.add(f"{self._reflectors}lists_total", kind)

    def interrupted(self, kind: str, cause: str, wait_seconds: float) -> None:  # noqa: ARG002 - as above
        """A list or watch ended."""
        self.add(f"{self._reflectors}watch_restarts_total", kind, cause)
