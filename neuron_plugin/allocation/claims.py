"""Claims of Dynamic Resource Allocation: requests, allocated devices, and the meaning of a device's name.

The kubelet may lose a driver's answer and then asks again. So a device's name in an allocation identifies the silicon,
and nothing is chosen once the allocation is written. ``neuron-3`` is device 3, ``neuron-3-cores-6-7`` are the logical
cores 6 and 7 of the host, on device 3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from neuron_plugin.allocation.rejection import Rejection
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.topology import MOST_SHAPES, NO_CORES, TORI, CoreMask, Geometry, Unit, cores_in
from neuron_plugin.topology.device_groups import GROUP_SIZES, device_groups

if TYPE_CHECKING:
    from neuron_plugin.allocation.pod import PodUid

DRA_DRIVER = "neuron.aws.com"
"""The default name of our driver. AWS's driver and the DeviceClass in AWS's claim templates have the same name."""
DRA_DRIVERS = (DRA_DRIVER, "neuron-plugin.io")
"""Drivers of Neuron devices: devices in their claims count as used on a node in any mode."""
CORE_CLASS = "neuroncore"
"""The DeviceClass of single cores, for claims that the placement controller allocates."""
PLACED_TAINT = "neuron-plugin.io/placed-by-gates"
"""A taint of every device where the placement controller allocates: it keeps kube-scheduler from choosing."""
UNHEALTHY_TAINT = "neuron-plugin.io/unhealthy"
"""A taint of a device that no new claim gets; its value is the reason in one word."""


Attributes = tuple[tuple[str, str | int | bool | None], ...]
"""Attributes that a device must have, with their values; None for any value."""
_TORUS_BLOCKS = (4, 8)
"""Devices of the aligned blocks that AWS's driver numbers on a torus."""
GROUP_ATTRIBUTES: Mapping[str, int] = {
    f"{DRA_DRIVER}/deviceId": 1,
    f"{DRA_DRIVER}/topology_x": min(columns for _, columns in TORI.values()),
    f"{DRA_DRIVER}/topology_y": 1,
    **{f"{DRA_DRIVER}/topology{size}_id": size for size in _TORUS_BLOCKS},
    **{f"resource.aws.com/devicegroup{size}_id": size for size in GROUP_SIZES},
}
"""Attributes that group devices, with a count of devices: every valid set of so many is in one group."""
MACHINE_ATTRIBUTES = frozenset({f"{DRA_DRIVER}/instanceType", f"{DRA_DRIVER}/resourceType"})
"""Attributes that are equal on all devices of a node."""
DEVICE_RESOURCE = Resource.NEURON
"""The resource name under which whole devices of a claim are counted."""

_DEVICE = re.compile(
    r"neuron-(?P<device>[0-9]{1,2})"
    r"(-cores-(?P<first>[0-9]{1,4})-(?P<last>[0-9]{1,4})(-lnc-(?P<lnc>[1-8]))?)?",
    re.ASCII,
)
_NUMBER_AT_END = re.compile(r"(?<![0-9])([0-9]{1,2})$", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class ClaimDevice:
    """The silicon behind a device's name: a whole device, or the logical cores from ``first`` to ``last`` of one.

    ``cores`` are host-global and count in logical cores of ``logical_core_size`` physical ones.
    """

    device: int
    cores: tuple[int, int] | None = None
    logical_core_size: int = 1

    @property
    def unit(self) -> Unit:
        """Devices or cores."""
        return Unit.CORE if self.cores else Unit.DEVICE

    @property
    def name(self) -> str:
        """The name in slices and allocations: a DNS label."""
        if self.cores is None:
            return f"neuron-{self.device}"
        size = f"-lnc-{self.logical_core_size}" if self.logical_core_size > 1 else ""
        return f"neuron-{self.device}-cores-{self.cores[0]}-{self.cores[1]}{size}"

    def mask_on(self, geometry: Geometry, logical_core_size: int) -> CoreMask:
        """The cores as the node numbers them now; the whole device if the logical core size has changed since."""
        if self.cores is None or self.logical_core_size != logical_core_size:
            return geometry.devices_mask((self.device,))
        first, last = self.cores
        return CoreMask(geometry.mask_of(Unit.CORE, range(first, last + 1)) & geometry.devices_mask((self.device,)))


def read_device_name(name: str) -> ClaimDevice | None:
    """Read a device's name; None if it is not one of ours."""
    match = _DEVICE.fullmatch(name)
    if match is None:
        return None
    if match["first"] is None:
        return ClaimDevice(int(match["device"]))
    return ClaimDevice(int(match["device"]), (int(match["first"]), int(match["last"])), int(match["lnc"] or 1))


def mask_of_name(name: str, geometry: Geometry, logical_core_size: int) -> CoreMask:
    """The cores of a device by its name, of any driver of Neuron devices.

    A number at the end of another driver's name is taken as the device id. A name without a number counts as all
    devices: to give a device twice is worse than not to give it.
    """
    if ours := read_device_name(name):
        return ours.mask_on(geometry, logical_core_size)
    number = _NUMBER_AT_END.search(name)
    return geometry.devices_mask((int(number[1]),)) if number else geometry.all_mask


@lru_cache(maxsize=MOST_SHAPES)
def device_attributes(geometry: Geometry) -> tuple[Mapping[str, str | int], ...]:
    """The attributes of each device in the machine's ResourceSlice, as far as they follow from the machine's type.

    Names and values are those of AWS's own driver. Types without EFA have no groups; only a torus has places and
    blocks.
    """
    groups, devices = device_groups(geometry.instance_type), []
    for device in range(geometry.device_count):
        attributes: dict[str, str | int] = {
            f"{DRA_DRIVER}/deviceId": device,
            f"{DRA_DRIVER}/resourceType": "neuron_device",
            f"{DRA_DRIVER}/instanceType": geometry.instance_type,
        }
        if place := geometry.torus_place(device):
            attributes |= {f"{DRA_DRIVER}/topology_{axis}": at for axis, at in zip("xy", place, strict=True)}
            attributes |= {f"{DRA_DRIVER}/topology{size}_id": device // size for size in _TORUS_BLOCKS}
        if device < len(groups):
            attributes |= {f"resource.aws.com/devicegroup{size}_id": text for size, text in groups[device].items()}
        devices.append(attributes)
    return tuple(devices)


def devices_with(geometry: Geometry, attributes: Attributes) -> tuple[int, ...]:
    """The devices of a machine that have all of these attributes with these values."""
    return tuple(
        device
        for device, has in enumerate(device_attributes(geometry))
        if all(
            name in has and (value is None or (type(value) is type(has[name]) and value == has[name]))
            for name, value in attributes
        )
    )


def devices_of(geometry: Geometry, unit: Unit, mask: int, logical_core_size: int) -> tuple[ClaimDevice, ...]:
    """The claim devices for the cores of a set: one for each Neuron device that the set touches.

    A valid set has consecutive cores on each device (``topology/sets.py``).
    """
    if unit is Unit.DEVICE:
        return tuple(ClaimDevice(device) for device in geometry.whole_devices(mask))
    devices = []
    for device in geometry.devices_touched(mask):
        cores = cores_in(mask & geometry.device_mask(device))
        devices.append(ClaimDevice(int(device), (int(cores[0]), int(cores[-1])), logical_core_size))
    return tuple(devices)


def pool_of(node: str) -> str:
    """The name of a node's pool. It differs from the node's name, which another driver may use for its pool."""
    return f"{node}-neuron"


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim as a pod names it.

    ``name`` is the name in the pod, ``claim`` the name of the ResourceClaim, empty until it exists. ``users`` are the
    containers that use the claim, each with the request that it uses; an empty one means all requests.
    """

    name: str
    claim: str
    users: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One request of a claim for our devices: ``count`` devices or cores, or 0 for all devices of a node.

    ``attributes`` are required of a device by selectors and constraints.
    """

    name: str
    unit: Unit
    count: int
    attributes: Attributes = ()


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """One device of a claim's allocation, and the request for which it was allocated."""

    request: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class NeuronClaim:
    """The parts of a ResourceClaim that decisions depend on.

    ``requests`` are for our devices; a ``Rejection`` if the placement controller cannot serve them, though
    kube-scheduler may. ``fault`` says why the configuration for our devices cannot be used. ``others``: the claim also
    requests other devices. ``results`` are the allocated devices of our driver. ``allocated`` says whether the claim
    has an allocation, and ``allocated_at`` since when, in unix seconds. ``node`` is the allocation's node, empty if it
    names none. ``logical_core_size`` is the LNC that the claim's configuration asks for, 0 for the node's own.
    """

    uid: str
    namespace: str
    name: str
    version: str = ""
    requests: tuple[ClaimRequest, ...] | Rejection = ()
    fault: str = ""
    others: bool = False
    allocated: bool = False
    allocated_at: float = 0.0
    results: tuple[ClaimResult, ...] = ()
    node: str = ""
    logical_core_size: int = 0
    reserved_for: tuple[PodUid, ...] = ()
    finalizers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def mask_on(self, geometry: Geometry, logical_core_size: int) -> CoreMask:
        """Every core of the claim's devices on a node."""
        return names_mask((result.device for result in self.results), geometry, logical_core_size)


def names_mask(names: Iterable[str], geometry: Geometry, logical_core_size: int) -> CoreMask:
    """Every core behind some names."""
    mask = NO_CORES
    for name in names:
        mask = CoreMask(mask | mask_of_name(name, geometry, logical_core_size))
    return mask
