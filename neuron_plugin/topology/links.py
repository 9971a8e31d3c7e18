"""Links between the devices of one node: what a topology's links are, and which topology some links are."""

from __future__ import annotations

from collections.abc import Mapping

from neuron_plugin.topology.geometry import Topology

TORUS_SIDE = 4
"""Rows and columns of the torus; device id = 4 * row + column (Neuron driver 2.24.7, connected_devices)."""

TORUS_BLOCK = TORUS_SIDE * TORUS_SIDE

Links = Mapping[int, frozenset[int]]


def links_of(topology: Topology, device_count: int) -> dict[int, frozenset[int]]:
    """Neighbours of every device as the type's documentation gives them, as sets; both ends of a link name it."""
    devices = frozenset(range(device_count))
    return {device: (devices - {device}) & _neighbours(topology, device_count, device) for device in devices}


def topology_of(links: Links) -> Topology:
    """The topology whose links these are, or UNLINKED: what makes a machine of an unknown type usable.

    ``links`` must cover the ids 0..n-1 without a gap to be recognised: a hole may hide any topology.
    """
    found, count = dict(links), len(links)
    return next((topology for topology in _candidates(count) if found == links_of(topology, count)), Topology.UNLINKED)


def _candidates(device_count: int) -> tuple[Topology, ...]:
    """What that many linked devices can be; a torus comes in whole blocks of 4 by 4."""
    if device_count <= 1:
        return (Topology.SINGLE,) * device_count
    whole_blocks = device_count % TORUS_BLOCK == 0
    return (Topology.LINE, Topology.RING, *((Topology.TORUS,) if whole_blocks else ()))


def _neighbours(topology: Topology, device_count: int, device: int) -> set[int]:
    """Among them may be the device itself, and at the ends of a line ids that no device has."""
    match topology:
        case Topology.LINE:
            return {device - 1, device + 1}
        case Topology.RING:
            return {(device - 1) % device_count, (device + 1) % device_count}
        case Topology.TORUS:
            return _torus_neighbours(device)
        case _:
            return set()


def _torus_neighbours(device: int) -> set[int]:
    """Row and column neighbours, wrapping; a 32-device host is two tori (bit 0x10 of the id)."""
    block, place = divmod(device, TORUS_BLOCK)
    row, column = divmod(place, TORUS_SIDE)
    return {
        block * TORUS_BLOCK + (r % TORUS_SIDE) * TORUS_SIDE + c % TORUS_SIDE
        for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
    }
