"""Links between the devices of one node: what a topology's links are, and which topology some links are."""

from __future__ import annotations

from collections.abc import Mapping

from neuron_plugin.topology.geometry import Topology

TORUS_SIDE = 4
"""Rows and columns of the torus; device id = 4 * row + column (Neuron driver 2.24.7, connected_devices)."""

Links = Mapping[int, frozenset[int]]


def links_of(topology: Topology, device_count: int) -> dict[int, frozenset[int]]:
    """Neighbours of every device as the type's documentation gives them, as sets."""
    return {device: frozenset(_neighbours(topology, device_count, device)) - {device} for device in range(device_count)}


def topology_of(links: Links) -> Topology:
    """The topology whose links these are, or UNLINKED: what makes a machine of an unknown type usable.

    ``links`` must cover the ids 0..n-1 without a gap to be recognised: a hole may hide any topology.
    """
    if len(links) == 1:
        return Topology.SINGLE
    for topology in (Topology.LINE, Topology.RING, Topology.TORUS):
        if dict(links) == links_of(topology, len(links)):
            return topology
    return Topology.UNLINKED


def _neighbours(topology: Topology, device_count: int, device: int) -> set[int]:
    match topology:
        case Topology.LINE:
            return {other for other in (device - 1, device + 1) if 0 <= other < device_count}
        case Topology.RING:
            return {(device - 1) % device_count, (device + 1) % device_count}
        case Topology.TORUS:
            return _torus_neighbours(device)
        case _:
            return set()


def _torus_neighbours(device: int) -> set[int]:
    """Row and column neighbours, wrapping; a 32-device host is two tori (bit 0x10 of the id)."""
    block, place = divmod(device, TORUS_SIDE * TORUS_SIDE)
    row, column = divmod(place, TORUS_SIDE)
    return {
        block * TORUS_SIDE * TORUS_SIDE + (r % TORUS_SIDE) * TORUS_SIDE + c % TORUS_SIDE
        for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
    }
