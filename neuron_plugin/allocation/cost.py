"""The cost of a set: how many sets later pods lose when it is handed out.

A chosen set breaks every free valid set that overlaps it. Its cost counts the broken sets that are at least as large as
itself. So single devices go to rows that are broken already, and whole rows and halves of a torus stay whole as long as
leftovers suffice.

All valid sets of a shape are numbered once, and a *family* is a bit mask over those numbers. The sets with a given core
are one family, so the sets that a choice breaks are found by a few integer operations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from neuron_plugin.topology import (
    MOST_SHAPES,
    TORI,
    CoreMask,
    Geometry,
    Unit,
    cores_in,
    sets_by_count,
)


def cost(geometry: Geometry, free: int, chosen: int) -> int:
    """The cost of ``chosen``, a part of ``free``; 0 means that it breaks no other set of its size or larger.

    Each broken set weighs its size in devices: a broken half costs more than a broken row. Cores outside the geometry
    are ignored.
    """
    return costs(geometry, free, (CoreMask(chosen & geometry.all_mask),))[0]


def costs(geometry: Geometry, free: int, sets: Iterable[CoreMask]) -> list[int]:
    """The cost of each of several sets, which lie in the geometry, in the same state of a node."""
    catalogue = _catalogue(geometry.shape)
    live = catalogue.everything & ~catalogue.touching(geometry.all_mask & ~free)
    weighted = [(weight, live & family) for weight, family in catalogue.by_weight if live & family]
    breaks = map(catalogue.breaking, sets)
    return [sum(weight * (broken & family).bit_count() for weight, family in weighted) for broken in breaks]


def devices_lost(geometry: Geometry, free: int, chosen: int) -> float:
    """How many fewer devices later pods can use once ``chosen`` is taken, on average over the sizes of pods.

    Costs cannot compare nodes of unlike hardware, because geometries differ in their number of sets; this can.
    """
    within, shape = free & geometry.all_mask, geometry.shape
    return _devices_usable(shape, within) - _devices_usable(shape, within & ~chosen)


@lru_cache(maxsize=4_096)
def _devices_usable(shape: Geometry, free: int) -> float:
    """How many devices are used when a node is filled with pods of one size, on average over the sizes.

    A size is a part of a device, a count of devices, or a count of cores: two devices can be had as cores on Trn2.
    """
    per_device, every = shape.cores_per_device, dict(sets_by_count(shape, Unit.CORE))
    every |= {count * per_device: masks for count, masks in sets_by_count(shape, Unit.DEVICE).items()}
    sizes = [cores for cores in every if cores < per_device or not cores % per_device]
    used = [cores * most_disjoint(mask for mask in every[cores] if mask & free == mask) for cores in sizes]
    return sum(used) / (len(sizes) * per_device)


def most_disjoint(masks: Iterable[CoreMask]) -> int:
    """How many of these windows, equally long and ascending, can be had together: greedy choice is optimal."""
    taken, most = 0, 0
    for mask in masks:
        if not mask & taken:
            taken |= mask
            most += 1
    return most


def tie_rank(geometry: Geometry, free: int, pods: int) -> int:
    """The rank of a node among nodes of equal cost: the lowest wins, then the lowest name.

    The most used node comes first, so that empty nodes stay empty: on a torus the node with most pods, elsewhere the
    node with the fewest free cores.
    """
    return -pods if geometry.topology in TORI else free.bit_count()


@dataclass(frozen=True)
class _SetCatalogue:
    """The valid sets of one shape, smallest first, and the families they form."""

    sizes: tuple[int, ...]
    everything: int
    """The family of all sets."""
    by_core: tuple[int, ...]
    by_weight: tuple[tuple[int, int], ...]
    numbers: dict[int, int]
    broken_by: dict[int, int]
    """The family that each valid set breaks, computed when first needed."""

    def touching(self, mask: int) -> int:
        """The family of sets with a core in ``mask``."""
        family = 0
        for core in cores_in(mask):
            family |= self.by_core[core]
        return family

    def breaking(self, mask: int) -> int:
        """The family of sets that ``mask`` breaks: they overlap it, are at least as large, and differ from it."""
        if mask in self.broken_by:
            return self.broken_by[mask]
        smaller = bisect_left(self.sizes, mask.bit_count())
        larger = self.touching(mask) >> smaller << smaller
        if (number := self.numbers.get(mask)) is not None:
            larger = self.broken_by[mask] = larger & ~(1 << number)
        return larger


@lru_cache(maxsize=MOST_SHAPES)
def _catalogue(shape: Geometry) -> _SetCatalogue:
    every = {mask for unit in Unit for masks in sets_by_count(shape, unit).values() for mask in masks}
    masks = sorted(every, key=lambda mask: (mask.bit_count(), mask))
    rows = [format(mask, f"0{shape.core_count}b") for mask in reversed(masks)]
    columns = reversed(list(zip(*rows, strict=True)))  # each core's family: rows are sets, columns are cores
    sizes = tuple(mask.bit_count() for mask in masks)
    weights = [-(-size // shape.cores_per_device) for size in sizes]
    # Families are parsed from text: to set bit by bit takes seconds for the largest geometries.
    texts = {weight: "".join("01"[own == weight] for own in reversed(weights)) for weight in set(weights)}
    return _SetCatalogue(
        sizes=sizes,
        everything=(1 << len(sizes)) - 1,
        by_core=tuple(int("".join(column), 2) for column in columns),
        by_weight=tuple((weight, int(text, 2)) for weight, text in sorted(texts.items())),
        numbers={mask: number for number, mask in enumerate(masks)},
        broken_by={},
    )
