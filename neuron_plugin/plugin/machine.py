"""The node's hardware as the daemon advertises it.

Between two looks at sysfs a device may vanish or the driver may be reloaded. What was advertised once stays listed,
as unhealthy: the kubelet treats a device that leaves the list worse than a sick one (it reports it as healthy to its
pod, and reads its topology without a nil check; pkg/kubelet/cm/devicemanager).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuron_plugin.allocation.inventory import NodeInventory
from neuron_plugin.allocation.ledger import Ledger
from neuron_plugin.allocation.resources import Resource, ids_of, mask_of
from neuron_plugin.kubelet.devices import AdvertisedDevice
from neuron_plugin.topology.geometry import CoreMask, Geometry
from neuron_plugin.topology.sets import Unit

MISSING = "missing: the driver does not list it"


@dataclass(frozen=True, slots=True)
class Machine:
    """Geometry, the device ids that are listed, and why some of them are not to be given out."""

    geometry: Geometry
    listed: tuple[int, ...]
    unhealthy: Mapping[int, str] = field(default_factory=dict)
    device_name: str = ""
    driver_version: str = ""
    logical_core_size: int = 1

    @property
    def healthy_mask(self) -> CoreMask:
        """Cores of listed devices with nothing wrong."""
        return self.geometry.devices_mask(device for device in self.listed if device not in self.unhealthy)

    def inventory(self) -> NodeInventory:
        """What the cluster is told: missing devices are not present, sick ones have their reason."""
        missing = {device for device, reason in self.unhealthy.items() if reason == MISSING}
        return NodeInventory(
            geometry=self.geometry,
            present=tuple(device for device in self.listed if device not in missing),
            unhealthy={device: reason for device, reason in self.unhealthy.items() if device not in missing},
            device_name=self.device_name,
            driver_version=self.driver_version,
            logical_core_size=self.logical_core_size,
        )


def machine_after(previous: Machine | None, seen: Machine) -> Machine:
    """The machine to advertise after a look that found ``seen``, ids and geometry of the last one kept.

    When the driver is gone nothing is seen: all that was listed stays, unhealthy. Ids are never re-interpreted: a
    look with another number of cores per device replaces the machine as a whole.
    """
    if previous is None or (seen.listed and not _same_ids(previous, seen)):
        return seen
    geometry = max(previous.geometry, seen.geometry, key=lambda geometry: geometry.device_count)
    listed = tuple(sorted({*previous.listed, *seen.listed}))
    gone = {device: MISSING for device in previous.listed if device not in seen.listed}
    known = seen if seen.listed else previous
    return Machine(
        geometry=geometry,
        listed=listed,
        unhealthy={**seen.unhealthy, **gone},
        device_name=known.device_name,
        driver_version=known.driver_version,
        logical_core_size=known.logical_core_size,
    )


def advertised(machine: Machine, ledger: Ledger, resource: Resource) -> tuple[AdvertisedDevice, ...]:
    """The ids of one resource: healthy when the hardware is and nothing of it is held under another name.

    What is held under this same name stays healthy: the kubelet keeps that account itself, and the health of a
    running pod's devices shows in its status.
    """
    listed = machine.geometry.devices_mask(machine.listed)
    elsewhere = ledger.used_mask & ~ledger.held_as(resource)
    usable = machine.healthy_mask & ~elsewhere
    geometry, unit = machine.geometry, resource.unit
    return tuple(
        AdvertisedDevice(str(number), healthy=mask_of(geometry, unit, (number,)) & ~usable == 0)
        for number in ids_of(geometry, unit, listed)
    )


def describe(machine: Machine) -> dict[str, object]:
    """The machine in a few fields, for a log line."""
    return {
        "instance_type": machine.geometry.instance_type,
        "devices": len(machine.listed),
        "cores": len(ids_of(machine.geometry, Unit.CORE, machine.geometry.devices_mask(machine.listed))),
        "unhealthy": dict(machine.unhealthy) or "none",
    }


def _same_ids(one: Machine, other: Machine) -> bool:
    """Whether a core id means the same silicon in both."""
    return one.geometry.cores_per_device == other.geometry.cores_per_device
