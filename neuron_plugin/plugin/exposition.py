"""Metrics in Prometheus's text format (0.0.4), which every scraper reads.

Written here because a page of text is all this daemon needs of a metrics library: what it counts are plain numbers,
and the library costs two megabytes on every node. Tests read these pages back with that library.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from neuron_plugin.plugin.counts import Latencies

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricKind(enum.StrEnum):
    """How a scraper treats the numbers."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name as it is exposed, its labels and its meaning; a counter's name ends in ``_total``."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    meaning: str


Samples = Mapping[tuple[str, ...], float]
"""Values by the values of the labels, in the metric's order."""


def exposed(metric: Metric, samples: Samples) -> Iterator[str]:
    """The lines of a gauge or counter; none of a metric without a sample."""
    if samples:
        yield from _head(metric)
    for values, sample in samples.items():
        yield f"{metric.name}{_labelled(zip(metric.labels, values, strict=True))} {float(sample)!r}"


def exposed_latencies(metric: Metric, by_value: Mapping[str, Latencies]) -> Iterator[str]:
    """The lines of a histogram with one label."""
    if by_value:
        yield from _head(metric)
    for value, latencies in by_value.items():
        own = [(metric.labels[0], value)]
        count = 0.0
        for bound, count in latencies.cumulative():
            yield f"{metric.name}_bucket{_labelled([*own, ('le', bound)])} {count!r}"
        yield f"{metric.name}_count{_labelled(own)} {count!r}"
        yield f"{metric.name}_sum{_labelled(own)} {latencies.sum_seconds!r}"


def _head(metric: Metric) -> Iterator[str]:
    meaning = metric.meaning.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {metric.name} {meaning}"
    yield f"# TYPE {metric.name} {metric.kind}"


def _labelled(labels: Iterable[tuple[str, str]]) -> str:
    texts = [f'{name}="{_escaped(value)}"' for name, value in labels]
    return f"{{{','.join(texts)}}}" if texts else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
