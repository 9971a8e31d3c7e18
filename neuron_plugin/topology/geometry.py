"""The shape of one node's Neuron hardware, and cores as bit masks.

Every set is a mask of host-global *logical* cores. Core ``k`` of device ``N`` is bit ``N * cores_per_device + k``, and
a device is the mask of its cores. So tests whether a set is free, or overlaps another, are single integer operations. A
missing device is a hole in a mask: ids never change.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NewType

from neuron_plugin.topology.links import TORI, Topology

DeviceId = NewType("DeviceId", int)
"""N of ``/dev/neuronN``."""

CoreId = NewType("CoreId", int)
"""Host-global logical core: device * logical cores per device + position."""

CoreMask = NewType("CoreMask", int)
"""A set of logical cores of one node; bit i is core i."""

NO_CORES = CoreMask(0)

MOST_DEVICES = 64
"""Of one node: four times as many as the largest type has."""
MOST_CORES_PER_DEVICE = 8
"""The Neuron driver's own limits (2.24.7 and 2.25.4); they bound every mask and table made from a geometry."""

MOST_SHAPES = 64
"""Cached shapes. A cluster has a dozen; the bound is for nodes that publish a new shape each time."""


class GeometryError(ValueError):
    """A geometry beyond the driver's limits; the text names the field, its value and the limit."""


class Unit(enum.StrEnum):
    """What a resource counts; the value is the vendor's word in refusals."""

    DEVICE = "device"
    CORE = "core"


@dataclass(frozen=True, slots=True)
class Geometry:
    """The facts that decide which sets of one node are valid.

    ``device_count`` is the nominal count of the type: ids run from 0 to ``device_count - 1`` even when a chip is
    missing. ``cores_per_device`` is logical (LNC applied), and 0 while it is unknown: then nothing can be handed out.
    ``block_sizes`` are the device counts that are handed out as aligned blocks; empty means any run of consecutive
    devices. ``core_block_sizes`` are the block sizes for requests for cores, which are then aligned inside a device,
    too; empty means ``block_sizes``.

    Raises:
        GeometryError: a count is negative or above ``MOST_DEVICES`` or ``MOST_CORES_PER_DEVICE``.
    """

    instance_type: str
    topology: Topology
    device_count: int
    cores_per_device: int
    block_sizes: tuple[int, ...] = ()
    core_block_sizes: tuple[int, ...] = ()
    core_count: int = field(init=False, compare=False, repr=False)
    """Logical cores of the whole node."""
    all_mask: CoreMask = field(init=False, compare=False, repr=False)
    """Every core of the node."""
    device_masks: tuple[CoreMask, ...] = field(init=False, compare=False, repr=False)
    """The cores of each device."""
    shape: Geometry = field(init=False, compare=False, repr=False)
    """The geometry without type and topology: types with the same sets, such as Trn2 and Trn3, share one."""
    _hash: int = field(init=False, compare=False, repr=False)
    """Computed once, because many caches are keyed by geometry."""

    def __hash__(self) -> int:
        return self._hash

    def __post_init__(self) -> None:
        for name, most in (("device_count", MOST_DEVICES), ("cores_per_device", MOST_CORES_PER_DEVICE)):
            if not 0 <= (value := getattr(self, name)) <= most:
                raise GeometryError(f"{name} is {value}, expected 0 to {most}: the Neuron driver knows no more")
        count = self.device_count * self.cores_per_device
        compared = self.instance_type, self.topology, self.device_count, self.cores_per_device
        object.__setattr__(self, "_hash", hash((*compared, self.block_sizes, self.core_block_sizes)))
        object.__setattr__(self, "core_count", count)
        object.__setattr__(self, "all_mask", CoreMask((1 << count) - 1))
        object.__setattr__(self, "device_masks", _device_masks(self.device_count, self.cores_per_device))
        is_shape = (self.instance_type, self.topology) == ("", Topology.UNLINKED)
        decides = self.device_count, self.cores_per_device, self.block_sizes, self.core_block_sizes
        shape = self if is_shape else _shape(*decides)
        object.__setattr__(self, "shape", shape)

    def torus_place(self, device: int) -> tuple[int, int] | None:
        """Row and column of a device on a torus, None elsewhere; rows of a second torus are numbered on."""
        torus = TORI.get(self.topology)
        return divmod(device, torus[1]) if torus else None

    def masks(self, unit: Unit) -> tuple[CoreMask, ...]:
        """The cores of every id of a unit, by id."""
        cores = range(self.core_count)
        return self.device_masks if unit is Unit.DEVICE else tuple(CoreMask(1 << core) for core in cores)

    def mask_of(self, unit: Unit, ids: Iterable[int]) -> CoreMask:
        """The cores of ids of a unit; ids outside the geometry are ignored."""
        is_device, mask = unit is Unit.DEVICE, 0
        count, size = (self.device_count, self.cores_per_device) if is_device else (self.core_count, 1)
        own = (1 << size) - 1
        for number in ids:
            mask |= own << number * size if 0 <= number < count else 0
        return CoreMask(mask)

    def ids_of(self, unit: Unit, mask: int) -> tuple[int, ...]:
        """The ids of a mask in a unit, ascending; a device counts if all of its cores are in the mask."""
        return self.whole_devices(mask) if unit is Unit.DEVICE else cores_in(mask)

    def device_mask(self, device: int) -> CoreMask:
        """The cores of one device; the device must be one of ``range(device_count)``."""
        return self.device_masks[device]

    def devices_mask(self, devices: Iterable[int]) -> CoreMask:
        """The cores of several devices; ids outside the geometry are ignored."""
        return self.mask_of(Unit.DEVICE, devices)

    def devices_touched(self, mask: int) -> tuple[DeviceId, ...]:
        """Devices with at least one core in ``mask``, ascending."""
        return tuple(DeviceId(device) for device, own in enumerate(self.device_masks) if mask & own)

    def whole_devices(self, mask: int) -> tuple[DeviceId, ...]:
        """Devices with every core in ``mask``, ascending."""
        return tuple(DeviceId(device) for device, own in enumerate(self.device_masks) if own and own & mask == own)


@lru_cache(maxsize=MOST_SHAPES)
def _device_masks(device_count: int, cores_per_device: int) -> tuple[CoreMask, ...]:
    own = (1 << cores_per_device) - 1
    return tuple(CoreMask(own << device * cores_per_device) for device in range(device_count))


@lru_cache(maxsize=MOST_SHAPES)
def _shape(
    device_count: int, cores_per_device: int, block_sizes: tuple[int, ...], core_block_sizes: tuple[int, ...]
) -> Geometry:
    return Geometry("", Topology.UNLINKED, device_count, cores_per_device, block_sizes, core_block_sizes)


def cores_in(mask: int) -> tuple[CoreId, ...]:
    """The core ids of a mask, ascending; the mask must not be negative."""
    cores = []
    while mask:
        lowest = mask & -mask
        cores.append(CoreId(lowest.bit_length() - 1))
        mask ^= lowest
    return tuple(cores)
