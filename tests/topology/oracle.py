"""Which sets there are, from first principles and as slowly as it takes.

Written from the documentation's words (runs of ids, rows and halves of the torus, windows of cores, which Trn2 and Trn3
align), on frozensets of core ids, and sharing no code with the package: what it says and the package does not is a
fault in one of them.
"""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import pairwise

from neuron_plugin.topology import Topology, Unit
from neuron_plugin.topology.geometry import Geometry
from neuron_plugin.topology.instances import InstanceType, catalogue

Cores = frozenset[int]

LINEAR = (Topology.SINGLE, Topology.LINE, Topology.RING)


def geometry_with(instance: InstanceType, logical_core_size: int) -> Geometry:
    return instance.geometry_with(instance.cores_per_device // logical_core_size)


def shipped(name: str, logical_core_size: int = 1) -> Geometry:
    return geometry_with(catalogue()[name], logical_core_size)


def every_geometry() -> list[Geometry]:
    """Every shipped type with every logical core size that divides its cores."""
    sizes = (1, 2, 4, 8)
    return [
        geometry_with(instance, size)
        for instance in catalogue().values()
        for size in sizes
        if instance.cores_per_device % size == 0
    ]


def distinct_geometries() -> list[Geometry]:
    """One type of each shape, with the logical core sizes in use: the others differ by name only."""
    shapes = {
        (geometry.topology, geometry.shape): geometry
        for geometry in reversed(every_geometry())
        if geometry.cores_per_device > 1
    }
    return sorted(shapes.values(), key=str)


TRN1 = shipped("trn1.32xlarge")
TRN2 = shipped("trn2.48xlarge", 2)
TRN2_LNC1 = shipped("trn2.48xlarge", 1)
INF1 = shipped("inf1.6xlarge")
INF1_RING = shipped("inf1.24xlarge")
INF2_LINE = shipped("inf2.24xlarge")
INF2_RING = shipped("inf2.48xlarge")
UNLINKED = shipped("trn3en.24xlarge", 2)
WIDE_LINE = Geometry("wide-line", Topology.LINE, 16, 8)
"""Where any window of a device will do: no shipped type has so many."""


def cores_of_devices(geometry: Geometry, devices: frozenset[int]) -> Cores:
    return frozenset(core for core in range(geometry.core_count) if core // geometry.cores_per_device in devices)


def as_cores(mask: int) -> Cores:
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def as_mask(cores: Cores) -> int:
    return sum(1 << core for core in cores)


def _device_groups(geometry: Geometry, count: int) -> set[frozenset[int]]:
    ids = range(geometry.device_count)
    groups: set[frozenset[int]] = set()
    if count == 1:
        groups |= {frozenset({device}) for device in ids}
    if count == geometry.device_count:
        groups.add(frozenset(ids))
    if geometry.topology in LINEAR:
        groups |= {frozenset(range(first, first + count)) for first in ids if first + count <= geometry.device_count}
    if geometry.topology is Topology.TORUS and count == 4:
        groups |= {frozenset(device for device in ids if device // 4 == row) for row in range(4)}
    if geometry.topology is Topology.TORUS and count == 8:
        groups |= {frozenset(device for device in ids if device // 8 == half) for half in range(2)}
    return groups


def _consecutive(cores: tuple[int, ...]) -> bool:
    return all(after == before + 1 for before, after in pairwise(cores))


@cache
def oracle_sets(geometry: Geometry, unit: Unit, count: int) -> frozenset[Cores]:
    """Every set of cores that may be handed out for ``count`` devices or cores."""
    if count < 1:
        return frozenset()
    per_device = geometry.cores_per_device
    if unit is Unit.DEVICE:
        return frozenset(cores_of_devices(geometry, group) for group in _device_groups(geometry, count))
    runs = [tuple(range(first, first + count)) for first in range(geometry.core_count - count + 1)]
    if geometry.instance_type.startswith(("trn2", "trn3")):
        if (count < per_device and count in (1, 2, 4)) or count == 2 * per_device:
            runs = [run for run in runs if run[0] % count == 0]
        else:
            runs = [run for run in runs if run[0] % per_device == 0]
        if count == 2 * per_device:
            return frozenset(map(frozenset, runs))
    if count <= per_device:
        return frozenset(frozenset(run) for run in runs if run[0] // per_device == run[-1] // per_device)
    if geometry.topology in LINEAR:
        return frozenset(frozenset(run) for run in runs if run[0] % per_device == 0)
    if count % per_device:
        return frozenset()
    return oracle_sets(geometry, Unit.DEVICE, count // per_device)


@cache
def oracle_everything(geometry: Geometry) -> frozenset[Cores]:
    """Every set of any size."""
    return frozenset(
        cores
        for unit, most in ((Unit.DEVICE, geometry.device_count), (Unit.CORE, geometry.core_count))
        for count in range(1, most + 1)
        for cores in oracle_sets(geometry, unit, count)
    )


def oracle_cost(geometry: Geometry, free: Cores, chosen: Cores) -> int:
    """What a choice breaks: free sets at least as large that it touches, each weighing the devices it spans."""
    broken = (
        cores
        for cores in _oracle_live(geometry, free)
        if len(cores) >= len(chosen) and cores != chosen and not cores.isdisjoint(chosen)
    )
    return sum(-(-len(cores) // geometry.cores_per_device) for cores in broken)


@lru_cache(maxsize=8)
def _oracle_live(geometry: Geometry, free: Cores) -> list[Cores]:
    """The sets of any size that could be handed out now."""
    return [cores for cores in oracle_everything(geometry) if cores <= free]


def oracle_best(geometry: Geometry, free: Cores, unit: Unit, count: int, must: Cores) -> Cores | None:
    """The cheapest set inside ``free`` and around ``must``; the lowest ids among equals."""
    fitting = [cores for cores in oracle_sets(geometry, unit, count) if must <= cores <= free]
    return min(fitting, key=lambda cores: (oracle_cost(geometry, free, cores), sorted(cores)), default=None)


def is_consecutive(cores: Cores) -> bool:
    return _consecutive(tuple(sorted(cores)))
