"""The valid sets of cores, by geometry and count.

A set is *valid* if the hardware links its devices or it is the whole machine, and the runtime can address it. On a line
or ring (Inf1, Inf2) that are consecutive ids, never across the wrap (the driver offsets by the first device only). On a
torus (Trn1, Trn2) it is one device, a row, two aligned rows or all. Cores of more than one device begin with the first
core of a device. With block sizes, cores are aligned inside a device, too. On Trn2 a slice that does not start at a
multiple of its own width fails in warm-up, long after its pod has started (AWS's tutorial for vLLM,
tutorial-epd-1e-1pd-xeypd.md). Sets are computed once per shape; callers only test masks against these tuples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from neuron_plugin.topology.geometry import MOST_SHAPES, CoreMask, Geometry, Unit

_MOST_STATES = 4096
"""Free masks whose sets are cached."""


def valid_sets(geometry: Geometry, unit: Unit, count: int) -> tuple[CoreMask, ...]:
    """Every valid set of ``count`` devices or cores, lowest ids first; empty if the count can never be met."""
    return sets_by_count(geometry.shape, unit).get(count, ())


@lru_cache(maxsize=_MOST_STATES)
def free_sets(geometry: Geometry, free_mask: CoreMask) -> Mapping[int, int]:
    """How many valid sets of devices lie in ``free_mask``, by the count of devices. Sets may overlap.

    A cluster of thousands of nodes has few different answers, so they are cached.
    """
    every = sets_by_count(geometry, Unit.DEVICE)
    return {count: sum(mask & free_mask == mask for mask in masks) for count, masks in every.items()}


@lru_cache(maxsize=MOST_SHAPES * len(Unit))
def sets_by_count(geometry: Geometry, unit: Unit) -> Mapping[int, tuple[CoreMask, ...]]:
    """All valid sets by count, ascending. Counts from outside are only looked up here."""
    if not geometry.core_count:
        return {}
    size, blocks = geometry.cores_per_device, geometry.block_sizes
    if unit is Unit.CORE:
        size, blocks = 1, geometry.core_block_sizes or blocks
    sets = {}
    for count in range(1, geometry.core_count // size + 1):
        window = (1 << count * size) - 1
        if starts := _starts(geometry, count * size, blocks):
            sets[count] = tuple(CoreMask(window << start) for start in starts)
    return sets


def _starts(geometry: Geometry, cores: int, blocks: tuple[int, ...]) -> Sequence[int]:
    """The first cores of all valid sets of so many cores.

    Inside a device any window is valid; larger sets begin with a device. With block sizes, larger sets are whole
    devices, and inside a device a power of two begins at a multiple of itself, any other number with the device.
    """
    size, count = geometry.cores_per_device, geometry.device_count
    if cores <= size:
        step = 1 if not blocks else cores if cores.bit_count() == 1 else size
        return [device * size + offset for device in range(count) for offset in range(0, size - cores + 1, step)]
    devices, rest = divmod(cores, size)
    last = geometry.core_count - cores
    if not blocks or last == 0:
        return range(0, last + 1, size)
    return range(0, last + 1, cores) if not rest and devices in blocks else ()
