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
    known, count = dict(links), len(links)
    fitting = (topology for topology in Topology if can_link(topology, count) and known == links_of(topology, count))
    return next(fitting, Topology.UNLINKED)


def can_link(topology: Topology, device_count: int) -> bool:
    """Whether so many devices can be linked so. A torus comes in whole blocks of 4 by 4."""
    whole = {Topology.SINGLE: device_count == 1, Topology.TORUS: device_count % TORUS_BLOCK == 0}
    return device_count > 0 and whole.get(topology, True)


def _neighbours(topology: Topology, device_count: int, device: int) -> set[int]:
    """Among them may be the device itself, and at the ends of a line ids that no device has."""
    match topology:
        case Topology.LINE:
            return {device - 1, device + 1}
        case Topology.RING:
            return {(device - 1) % device_count, (device + 1) % device_count}
        case Topology.TORUS:
            block, place = divmod(device, TORUS_BLOCK)  # a 32-device host is two tori (bit 0x10 of the id)
            row, column = divmod(place, TORUS_SIDE)
            return {
                block * TORUS_BLOCK + (r % TORUS_SIDE) * TORUS_SIDE + c % TORUS_SIDE  # both directions wrap
                for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
            }
        case _:
            return set()
