"""Which set a request gets, or why it gets none.

Pure functions of (geometry, free cores, request), so the plugin and the extender, given the same node, choose the
same set. Among the sets that fit, the one that costs later pods least; ties go to the lowest id.
"""

from __future__ import annotations

from functools import lru_cache

from neuron_plugin.allocation.cost import costs
from neuron_plugin.allocation.refusals import Refusal, fragmented, not_free, too_many, unsupported_count
from neuron_plugin.topology import NO_CORES, CoreMask, Geometry, Unit, valid_sets

_MEMO_SIZE = 16_384
"""Distinct (geometry, free mask, request) states kept, some 20 MB at most; a cluster shows fewer at a time."""


def fitting(geometry: Geometry, free: int, unit: Unit, count: int, must_include: int = NO_CORES) -> list[CoreMask]:
    """The valid sets of ``count`` inside ``free`` and around ``must_include``, lowest ids first."""
    return [
        mask
        for mask in valid_sets(geometry, unit, count)
        if mask & free == mask and mask & must_include == must_include
    ]


@lru_cache(maxsize=_MEMO_SIZE)
def candidates(
    geometry: Geometry, free: int, unit: Unit, count: int, must_include: int = NO_CORES
) -> tuple[CoreMask, ...]:
    """The same sets, best first: by what they cost later pods, then by lowest ids."""
    sets = fitting(geometry, free, unit, count, must_include)
    if len(sets) <= 1:
        return tuple(sets)
    return tuple(mask for _, mask in sorted(zip(costs(geometry, free, sets), sets, strict=True)))


def choose(geometry: Geometry, free: int, unit: Unit, count: int, must_include: int = NO_CORES) -> CoreMask | Refusal:
    """The best set of ``count`` devices or cores, or the reason there is none.

    ``free`` are the cores nobody holds, of devices that are present and healthy; ``must_include`` is part of it. Bits
    of ``free`` outside the geometry count for nothing.
    """
    within = free & geometry.all_mask
    sets = candidates(geometry, within, unit, count, must_include)
    return sets[0] if sets else why_not(geometry, within, unit, count)


def why_not(geometry: Geometry, free: int, unit: Unit, count: int) -> Refusal:
    """The reason why no set of ``count`` lies in ``free``; asked only when there is none."""
    whole = geometry.device_count if unit is Unit.DEVICE else geometry.core_count
    if count > whole:
        return too_many(geometry, unit, count)
    if not valid_sets(geometry, unit, count):
        return unsupported_count(geometry, unit, count)
    available = len(fitting(geometry, free, unit, 1))
    return not_free(unit, count) if available < count else fragmented(unit, count)
