"""What is asked of a simulated cluster: mixes of shapes, and arrivals, made by chance or read from a trace."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from random import Random

from neuron_plugin.allocation import PodRequest
from neuron_plugin.allocation.placement import cores_asked
from neuron_plugin.planning import DemandError, parse_shape
from neuron_plugin.topology import Geometry

_COLUMNS = {"devices": "neuron", "cores": "neuroncore"}


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a pod comes, how long it stays, and what it asks for; times in hours."""

    comes: float
    stays: float
    request: PodRequest


_UNREADABLE = Arrival(nan, nan, ())


_MIXES: Mapping[str, Mapping[str, float]] = {
    "train": {"neuroncore=1": 0.25, "neuron=1": 0.35, "neuron=4": 0.2, "neuron=8": 0.12, "neuron=16": 0.08},
    "infer": {"neuroncore=1": 0.5, "neuron=1": 0.25, "neuron=2": 0.1, "neuron=3": 0.05, "neuron=6": 0.1},
}
MIXES: Mapping[str, Mapping[PodRequest, float]] = {
    name: {parse_shape(shape): weight for shape, weight in mix.items()} for name, mix in _MIXES.items()
}
"""Shares of pods by what they ask for."""


def devices_asked(geometry: Geometry, request: PodRequest) -> float:
    """How many devices of such a node a request asks for."""
    return sum(cores_asked(geometry, container) for container in request) / geometry.cores_per_device


def arrivals(
    geometries: Sequence[Geometry],
    mix: Mapping[PodRequest, float],
    load: float,
    pods: int,
    *,
    seed: int = 0,
) -> list[Arrival]:
    """Pods that come at random and stay for an exponential time, an hour on average.

    ``load`` is what is asked for on average, in parts of all devices of nodes with these geometries.
    """
    random = Random(seed)  # noqa: S311 - a simulation, repeatable by its seed
    kinds = list(mix)
    asked = [devices_asked(geometries[0], request) for request in kinds]
    mean_asked = sum(size * weight for size, weight in zip(asked, mix.values(), strict=True)) / sum(mix.values())
    rate = load * sum(geometry.device_count for geometry in geometries) / mean_asked
    now, coming = 0.0, []
    for request in random.choices(kinds, list(mix.values()), k=pods):
        now += random.expovariate(rate)
        coming.append(Arrival(now, random.expovariate(1.0), request))
    return coming


def read_trace(text: str) -> list[Arrival]:
    """Arrivals from CSV with a heading: ``time``, ``duration`` (both in hours) and ``devices`` or ``cores``.

    Raises:
        DemandError: a column is missing, or a line has no such numbers.
    """
    rows = csv.DictReader(io.StringIO(text))
    columns = set(rows.fieldnames or ())
    if not {"time", "duration"} <= columns or columns.isdisjoint(_COLUMNS):
        heading = ",".join(rows.fieldnames or ())
        raise DemandError(f"the heading is {heading[:80]!r}, expected the columns time, duration, and devices or cores")
    return sorted(_arrivals(rows), key=lambda arrival: arrival.comes)


def _arrivals(rows: csv.DictReader[str]) -> Iterable[Arrival]:
    for row in rows:
        asked = [f"{name}={row[column]}" for column, name in _COLUMNS.items() if row.get(column)]
        try:
            (shape,) = asked
            arrival = Arrival(float(row["time"]), float(row["duration"]), parse_shape(shape))
        except (TypeError, ValueError):
            arrival = _UNREADABLE
        if not (isfinite(arrival.comes) and 0 < arrival.stays < inf):
            line = ",".join(str(value) for value in row.values())
            text = f"line {rows.line_num} is {line[:80]!r}, expected a time, a duration above 0, and devices or cores"
            raise DemandError(text)
        yield arrival
