"""What handing out a set takes from later pods.

A free core is worth what can still be built from it: the valid sets that contain it and are free now. A set's cost is
what it breaks of those that are at least as large as itself. So singles go where a row or a device is broken already,
and whole rows and halves stay whole as long as leftovers suffice.

All valid sets of a geometry are numbered once, and a *family* is a bit mask over those numbers. Which sets a core is
part of is one family, so "the free sets that this choice breaks" is a few integer operations however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from neuron_plugin.topology.geometry import CoreMask, Geometry, cores_in
from neuron_plugin.topology.sets import Unit, valid_counts, valid_sets


def cost(geometry: Geometry, free: int, chosen: int) -> int:
    """What ``chosen``, a part of ``free``, breaks; 0 means later pods lose nothing.

    Each broken set weighs its size in devices: losing a half takes more from a later pod than losing a row.
    """
    catalogue = _catalogue(geometry)
    live = catalogue.everything & ~catalogue.touching(geometry.all_mask & ~free)
    broken = live & catalogue.touching(chosen) & catalogue.at_least(chosen.bit_count()) & ~catalogue.same_as(chosen)
    return sum(weight * (broken & family).bit_count() for weight, family in catalogue.by_weight)


@dataclass(frozen=True)
class _SetCatalogue:
    """The valid sets of one geometry, smallest first, and the families they form."""

    masks: tuple[CoreMask, ...]
    by_core: tuple[int, ...]
    by_weight: tuple[tuple[int, int], ...]
    numbers: dict[int, int]
    first_of_size: tuple[int, ...]

    @property
    def everything(self) -> int:
        return (1 << len(self.masks)) - 1

    def touching(self, mask: int) -> int:
        """The family of sets with a core in ``mask``."""
        family = 0
        for core in cores_in(mask):
            family |= self.by_core[core]
        return family

    def at_least(self, cores: int) -> int:
        """The family of sets with that many cores or more."""
        return self.everything >> self.first_of_size[cores] << self.first_of_size[cores]

    def same_as(self, mask: int) -> int:
        """The family of the one set that is ``mask``; empty when it is not a valid set."""
        number = self.numbers.get(mask)
        return 0 if number is None else 1 << number


@cache
def _catalogue(geometry: Geometry) -> _SetCatalogue:
    masks = _all_sets(geometry)
    sizes = [mask.bit_count() for mask in masks]
    weights = [-(-size // geometry.cores_per_device) for size in sizes]
    return _SetCatalogue(
        masks=masks,
        by_core=tuple(_family(bool(mask >> core & 1) for mask in masks) for core in range(geometry.core_count)),
        by_weight=tuple((weight, _family(own == weight for own in weights)) for weight in sorted(set(weights))),
        numbers={mask: number for number, mask in enumerate(masks)},
        first_of_size=tuple(sum(size < cores for size in sizes) for cores in range(geometry.core_count + 1)),
    )


def _all_sets(geometry: Geometry) -> tuple[CoreMask, ...]:
    """Every valid set once, by size and then by id."""
    masks = {
        mask for unit in Unit for count in valid_counts(geometry, unit) for mask in valid_sets(geometry, unit, count)
    }
    return tuple(sorted(masks, key=lambda mask: (mask.bit_count(), mask)))


def _family(members: Iterable[bool]) -> int:
    return sum(1 << number for number, belongs in enumerate(members) if belongs)
