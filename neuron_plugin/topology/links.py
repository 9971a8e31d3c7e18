"""The topologies: which devices each links, and where devices stand when they are drawn.

All that follows from a topology's name is here, so a new topology is added here. Machines that have it are in
``instances.py``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Topology(enum.StrEnum):
    """How a node's devices are linked."""

    SINGLE = "single"
    LINE = "line"
    RING = "ring"
    TORUS = "torus"
    UNLINKED = "unlinked"
    """Nothing known: only one device or all of them can be handed out."""

    @property
    def blocks(self) -> tuple[int, ...]:
        """Device counts that are handed out as aligned blocks, unless the instance type has its own; empty: any run."""
        return _BLOCKS.get(self, ())

    def can_link(self, device_count: int) -> bool:
        """Whether a machine of this topology can have so many devices; tori are complete."""
        if self in TORI:
            rows, columns = TORI[self]
            return device_count > 0 and device_count % (rows * columns) == 0
        return device_count == 1 if self is Topology.SINGLE else device_count > 0


TORI: Mapping[Topology, tuple[int, int]] = {Topology.TORUS: (4, 4)}
"""Rows and columns of each torus: device id = columns * row + column, and rows and columns close around the edge.

A host with more devices has several tori that share no link. Source: Neuron driver 2.24.7, connected_devices.
"""

_BLOCKS: Mapping[Topology, tuple[int, ...]] = {Topology.TORUS: (1, 4, 8, 16), Topology.UNLINKED: (1,)}
"""Counts with collectives support on the torus are 2, 8, 16 or a multiple of 32 cores on Trn1."""

Links = Mapping[int, frozenset[int]]


def links_of(topology: Topology, device_count: int) -> dict[int, frozenset[int]]:
    """Neighbours of every device as the type's documentation gives them; both ends of a link name it."""
    devices = frozenset(range(device_count))
    return {device: (devices - {device}) & _neighbours(topology, device_count, device) for device in devices}


def topology_of(links: Links) -> Topology:
    """The topology whose links these are, else UNLINKED. It makes a machine of an unknown type usable.

    ``links`` must cover the ids 0..n-1 without a gap to be recognised: a hole may hide any topology.
    """
    known, count = dict(links), len(links)
    fitting = (topology for topology in Topology if topology.can_link(count) and known == links_of(topology, count))
    return next(fitting, Topology.UNLINKED)


def _neighbours(topology: Topology, device_count: int, device: int) -> set[int]:
    """May contain the device itself and, at the ends of a line, ids that no device has."""
    if topology in TORI:
        rows, columns = TORI[topology]
        row, column = divmod(device % (rows * columns), columns)
        first = device - device % (rows * columns)
        return {
            first + r % rows * columns + c % columns  # both directions wrap
            for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
        }
    match topology:
        case Topology.LINE:
            return {device - 1, device + 1}
        case Topology.RING:
            return {(device - 1) % device_count, (device + 1) % device_count}
        case _:
            return set()


@dataclass(frozen=True, slots=True)
class Grid:
    """Row and column of each drawn device, by id. ``wraps``: rows and columns close around the edge."""

    places: Mapping[int, tuple[int, int]]
    wraps: bool = False

    def neighbours(self) -> list[tuple[int, int]]:
        """Pairs of devices beside each other, left or upper one first."""
        devices = {place: device for device, place in self.places.items()}
        beside = [
            (device, place)
            for device, (row, column) in self.places.items()
            for place in ((row, column + 1), (row + 1, column))
        ]
        return [(device, devices[place]) for device, place in beside if place in devices]

    def around(self) -> list[tuple[int, int]]:
        """Pairs of devices beside each other around the edge, right or lower one first."""
        if not self.wraps:
            return []
        devices = {place: device for device, place in self.places.items()}
        last_row, last_column = max(devices)
        rows = [(devices[row, last_column], devices[row, 0]) for row in range(last_row + 1)]
        return rows + [(devices[last_row, column], devices[0, column]) for column in range(last_column + 1)]


def grids_of(topology: Topology, device_count: int, longest_row: int) -> tuple[Grid, ...]:
    """Where the devices stand in a drawing, linked ids beside each other: a grid for each torus, else one grid.

    ``longest_row`` is the most devices of a row where the topology does not say how many a row has. Rows of a line or
    ring turn at each end. A ring is folded in two where it fits, so that its ends meet.
    """
    if topology in TORI:
        rows, columns = TORI[topology]
        size = rows * columns
        tori = [range(first, min(first + size, device_count)) for first in range(0, device_count, size)]
        return tuple(
            Grid({device: divmod(device - ids[0], columns) for device in ids}, wraps=len(ids) == size) for ids in tori
        )
    columns = min(longest_row, (device_count + 1) // 2) if topology is Topology.RING else longest_row
    places = {device: divmod(device, columns) for device in range(device_count)}
    if topology in {Topology.LINE, Topology.RING}:
        places = {device: (row, columns - 1 - at if row % 2 else at) for device, (row, at) in places.items()}
    return (Grid(places),)
