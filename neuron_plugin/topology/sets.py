"""Which sets of cores may be handed out together, per geometry and count.

A set is *valid* when the hardware links its devices, or it is the whole machine, and the runtime can address it. That
is consecutive ids on a line or ring, never across the wrap (the driver offsets by the first device only). On a torus it
is one device, a row, two aligned rows or all. Computed once per shape; callers only test masks against these tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from neuron_plugin.topology.geometry import MOST_SHAPES, CoreMask, Geometry, Unit

_MOST_STATES = 4096


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
    any_run = not geometry.block_sizes or count in (1, geometry.device_count)
    if not any_run and count not in geometry.block_sizes:
        return ()
    starts = range(0, geometry.device_count - count + 1, 1 if any_run else count)
    return tuple(geometry.devices_mask(range(start, start + count)) for start in starts)


def _core_sets(geometry: Geometry, count: int) -> tuple[CoreMask, ...]:
    """Any window inside a device; more from a device boundary, and only whole devices where blocks rule."""
    per_device, window = geometry.cores_per_device, (1 << count) - 1
    if count <= per_device:
        offsets = range(per_device - count + 1)
        firsts = [device * per_device + offset for device in range(geometry.device_count) for offset in offsets]
        return tuple(CoreMask(window << first) for first in firsts)
    devices, rest = divmod(count, per_device)
    if not rest:
        return _device_sets(geometry, devices)
    starts = () if geometry.block_sizes else range(geometry.device_count - devices)
    return tuple(CoreMask(window << (start * per_device)) for start in starts)
