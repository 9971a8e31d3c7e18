"""Disjoint sets for many containers at once, whatever they cost.

Choosing the cheapest set container by container can lead into a dead end on a torn node. Where no container can
re-use another's silicon their order does not matter, so here the largest go first, like ones take rising ids, and a
branch is left as soon as too few sets remain for the like ones ahead. What this search looks at is far less than all,
and it is bounded for the rest: packing is a hard problem, and a pod is waiting.
"""

from __future__ import annotations

from neuron_plugin.allocation.choice import fitting
from neuron_plugin.allocation.requests import ContainerRequest, PodRequest
from neuron_plugin.topology import CoreMask, Geometry, Unit, valid_sets

_LOOKS = 100_000
"""Sets the search may look at: some ten milliseconds."""


def pack(geometry: Geometry, free: int, request: PodRequest) -> tuple[CoreMask, ...] | None:
    """Disjoint valid sets inside ``free`` for containers none of which is a plain init container, in their order.

    None when there are none, or none was found within the bound.
    """
    order = sorted(range(len(request)), key=lambda index: _rank(geometry, request[index]))
    found = _Packing(geometry, [request[index] for index in order]).solve(0, free, 0)
    if found is None:
        return None
    by_index = dict(zip(order, found, strict=True))
    return tuple(by_index[index] for index in range(len(request)))


def cores_asked(geometry: Geometry, part: ContainerRequest) -> int:
    """How many cores a container asks for, in whatever unit it counts."""
    return part.count * (geometry.cores_per_device if part.resource.unit is Unit.DEVICE else 1)


def _rank(geometry: Geometry, part: ContainerRequest) -> tuple[int, Unit]:
    """Largest first, and like ones side by side."""
    return (-cores_asked(geometry, part), part.resource.unit)


class _Packing:
    """Depth-first over containers that are ordered by ``_rank``; remembers dead ends."""

    def __init__(self, geometry: Geometry, parts: list[ContainerRequest]) -> None:
        self._geometry = geometry
        self._demands = [(part.resource.unit, part.count) for part in parts]
        self._looks = _LOOKS
        self._dead: set[tuple[int, int, int]] = set()

    def solve(self, index: int, free: int, above: int) -> tuple[CoreMask, ...] | None:
        """Sets for the parts from ``index`` on; the first is a mask above ``above``, as its like before was."""
        if index == len(self._demands):
            return ()
        if (index, free, above) in self._dead:
            return None
        is_like_next = self._like_ahead(index) > 1
        for mask in self._options(index, free, above):
            rest = self.solve(index + 1, free & ~mask, mask if is_like_next else 0)
            if rest is not None:
                return (mask, *rest)
        self._dead.add((index, free, above))
        return None

    def _options(self, index: int, free: int, above: int) -> list[CoreMask]:
        """The sets left for a part; none when they are too few for it and its like, or the bound is reached."""
        unit, count = self._demands[index]
        self._looks -= len(valid_sets(self._geometry, unit, count))
        if self._looks < 0:
            return []
        options = [mask for mask in fitting(self._geometry, free, unit, count) if mask > above]
        return options if _most_disjoint(options) >= self._like_ahead(index) else []

    def _like_ahead(self, index: int) -> int:
        """How many parts from ``index`` on ask for the same; they stand side by side."""
        return self._demands[index:].count(self._demands[index])


def _most_disjoint(masks: list[CoreMask]) -> int:
    """How many of these equally long windows, ascending, can be had together: the first that fits is always right."""
    taken, most = 0, 0
    for mask in masks:
        if not mask & taken:
            taken |= mask
            most += 1
    return most
