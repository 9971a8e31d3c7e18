"""Which sets of cores may be handed out together, per geometry and count.

A set is *valid* when the hardware links its devices, or it is the whole machine, and the runtime can address it:
consecutive ids on a line or ring, never across the wrap (the driver offsets by the first device only), and on a torus
one device, a row, two aligned rows or all. Computed once per shape; callers only test masks against these tuples.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import lru_cache

from neuron_plugin.topology.geometry import MOST_SHAPES, CoreMask, Geometry

_MOST_STATES = 4096


class Unit(enum.StrEnum):
    """What a resource counts; the value is the vendor's word in refusals."""

    DEVICE = "device"
    CORE = "core"


def valid_sets(geometry: Geometry, unit: Unit, count: int) -> tuple[CoreMask, ...]:
    """Every valid set of ``count`` devices or cores, lowest ids first; empty when the count can never be met."""
    return _sets_by_count(geometry.shape, unit).get(count, ())


def valid_counts(geometry: Geometry, unit: Unit) -> tuple[int, ...]:
    """Every count that has a valid set, ascending."""
    return tuple(_sets_by_count(geometry.shape, unit))


@lru_cache(maxsize=_MOST_STATES)
def free_sets(geometry: Geometry, free_mask: CoreMask) -> Mapping[int, int]:
    """How many valid sets of devices lie in ``free_mask``, by the count of devices. They overlap: only one may be had.

    A cluster of thousands of nodes has few different answers, so they are remembered.
    """
    counts = valid_counts(geometry, Unit.DEVICE)
    return {
        count: sum(each & free_mask == each for each in valid_sets(geometry, Unit.DEVICE, count)) for count in counts
    }


@lru_cache(maxsize=MOST_SHAPES * len(Unit))
def _sets_by_count(shape: Geometry, unit: Unit) -> dict[int, tuple[CoreMask, ...]]:
    """All valid sets by count, ascending: a count from outside is looked up, never computed with."""
    if not shape.core_count:
        return {}
    of_unit = {Unit.DEVICE: (_device_sets, shape.device_count), Unit.CORE: (_core_sets, shape.core_count)}
    sets, most = of_unit[unit]
    return {count: found for count in range(1, most + 1) if (found := sets(shape, count))}


def _device_sets(geometry: Geometry, count: int) -> tuple[CoreMask, ...]:
    step = _step(geometry, count)
    starts = range(0, geometry.device_count - count + 1, step) if step else ()
    return tuple(geometry.devices_mask(range(start, start + count)) for start in starts)


def _step(geometry: Geometry, count: int) -> int:
    """Distance between the first devices of neighbouring sets; 0 when the count has none."""
    if not geometry.block_sizes or count in (1, geometry.device_count):
        return 1
    return count if count in geometry.block_sizes else 0


def _core_sets(geometry: Geometry, count: int) -> tuple[CoreMask, ...]:
    fits_one = count <= geometry.cores_per_device
    return _windows_inside_devices(geometry, count) if fits_one else _core_runs(geometry, count)


def _windows_inside_devices(geometry: Geometry, count: int) -> tuple[CoreMask, ...]:
    window = (1 << count) - 1
    return tuple(
        CoreMask(window << (device * geometry.cores_per_device + offset))
        for device in range(geometry.device_count)
        for offset in range(geometry.cores_per_device - count + 1)
    )


def _core_runs(geometry: Geometry, count: int) -> tuple[CoreMask, ...]:
    """More cores than one device has: from a device boundary, and only whole devices where blocks rule."""
    devices, rest = divmod(count, geometry.cores_per_device)
    if not rest:
        return _device_sets(geometry, devices)
    if geometry.block_sizes:
        return ()
    run = (1 << count) - 1
    firsts = range(geometry.device_count - devices)
    return tuple(CoreMask(run << (first * geometry.cores_per_device)) for first in firsts)
