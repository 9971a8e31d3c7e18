"""The node's hardware as the daemon advertises it.

Between two looks at sysfs a device may vanish or the driver may be reloaded. What was advertised once stays listed,
as unhealthy: the kubelet treats a device that leaves the list worse than a sick one (it reports it as healthy to its
pod, and reads its topology without a nil check; pkg/kubelet/cm/devicemanager).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from neuron_plugin.allocation import HolderLedger, NodeInventory, Resource, ids_of, mask_of
from neuron_plugin.hardware import DriverVersion, Inventory, UltraServer
from neuron_plugin.kubelet import AdvertisedDevice
from neuron_plugin.plugin.quarantine import Quarantine
from neuron_plugin.plugin.wording import named
from neuron_plugin.topology import Catalogue, CoreMask, DeviceId, Geometry, Topology, Unit, geometry_of

MISSING = "missing: the driver does not list it"


@dataclass(frozen=True, slots=True)
class Machine:
    """Geometry, the device ids that are listed, and why some of them are not to be given out.

    ``numa_nodes`` are those of the instance type; sysfs does not tell them (a Neuron device has no PCI parent there).
    """

    geometry: Geometry
    listed: tuple[int, ...]
    unhealthy: Mapping[int, str] = field(default_factory=dict)
    device_name: str = ""
    driver_version: DriverVersion | None = None
    logical_core_size: int = 1
    physical_cores_per_device: int = 0
    ultraserver: UltraServer | None = None
    numa_nodes: Mapping[int, int] = field(default_factory=dict)

    @property
    def physical_core_count(self) -> int:
        """Physical cores of all listed devices; 0 when it is not known."""
        return self.physical_cores_per_device * len(self.listed)

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
            driver_version=self.driver_version.text if self.driver_version else "",
            logical_core_size=self.logical_core_size,
            physical_cores_per_device=self.physical_cores_per_device,
            ultraserver=_ids_of(self.ultraserver) if self.ultraserver else {},
        )


def seen_machine(
    inventory: Inventory, types: Catalogue, instance_type: str, unhealthy: Mapping[int, str]
) -> Machine | None:
    """The hardware as one look found it; None when there is no device to speak of.

    A type that is known says which ids there should be: those that are not there are listed as missing, because a
    pod may have held one a moment ago and because a full node asks for all of them. ``instance_type`` stands in where
    the machine does not tell its own. ``unhealthy`` says which devices are not to be given out, and why.
    """
    if not inventory.devices:
        return None
    geometry = geometry_of(
        types,
        inventory.instance_type or instance_type,
        device_ids=inventory.device_ids,
        cores_per_device=inventory.cores_per_device,
        links={int(device): frozenset(map(int, linked)) for device, linked in inventory.links.items()},
    )
    known = types.get(geometry.instance_type)
    nominal = range(geometry.device_count) if geometry.instance_type in types else ()
    skipped = {device.id: device.reason for device in inventory.skipped}
    listed = sorted({*inventory.device_ids, *nominal})
    absent = {device: skipped.get(DeviceId(device), MISSING) for device in listed if device not in inventory.device_ids}
    return Machine(
        geometry=geometry,
        listed=tuple(listed),
        unhealthy={**{device: why for device, why in unhealthy.items() if device in inventory.device_ids}, **absent},
        device_name=inventory.device_name,
        driver_version=inventory.driver_version,
        logical_core_size=inventory.logical_core_size.size,
        physical_cores_per_device=inventory.physical_cores_per_device,
        ultraserver=inventory.ultraserver,
        numa_nodes=dict(enumerate(known.numa_nodes)) if known else {},
    )


def machine_after(previous: Machine | None, seen: Machine | None) -> Machine | None:
    """The machine to advertise after a look that found ``seen``: what was listed once stays listed.

    When the driver is gone nothing is seen, and all that was listed is unhealthy. Ids are never re-interpreted: a
    look with another number of cores per device is another machine as a whole.
    """
    if previous is None or (seen and not same_ids(previous, seen)):
        return seen
    latest = seen or previous
    gone = {device: MISSING for device in previous.listed if not seen or device not in seen.listed}
    return replace(
        latest,
        geometry=max(latest.geometry, previous.geometry, key=_knowledge),
        listed=tuple(sorted({*previous.listed, *latest.listed})),
        unhealthy={**(seen.unhealthy if seen else {}), **gone},
    )


def health_after(previous: Machine, seen: Machine) -> Machine:
    """``previous`` with what a look whose core ids mean something else says of its devices."""
    found = {device: reason for device, reason in seen.unhealthy.items() if device in previous.listed}
    gone = {device: MISSING for device in previous.listed if device not in seen.listed}
    return replace(previous, unhealthy={**found, **gone})


def advertised(
    machine: Machine, ledger: HolderLedger, resource: Resource, quarantine: Quarantine | None = None
) -> tuple[AdvertisedDevice, ...]:
    """The ids of one resource: healthy when the hardware is and nothing of it is held under another name, or suspect.

    What is held under this same name stays healthy: the kubelet keeps that account itself, and the health of a
    running pod's devices shows in its status.
    """
    suspect = quarantine.mask & ~ledger.held_as(resource) if quarantine else 0
    listed = machine.geometry.devices_mask(machine.listed)
    elsewhere = ledger.used_mask & ~ledger.held_as(resource)
    geometry, unit = machine.geometry, resource.unit
    devices = []
    for number in ids_of(geometry, unit, listed):
        mask = mask_of(geometry, unit, (number,))
        reason = _why_unusable(machine, ledger, mask, elsewhere)
        if not reason and quarantine and mask & suspect:
            reason = quarantine.reason_for(mask & suspect)
        devices.append(AdvertisedDevice(str(number), healthy=not reason, reason=reason))
    return tuple(devices)


def _why_unusable(machine: Machine, ledger: HolderLedger, mask: int, elsewhere: int) -> str:
    sick = [
        machine.unhealthy[device] for device in machine.geometry.devices_touched(mask) if device in machine.unhealthy
    ]
    if sick:
        return sick[0]
    if not mask & elsewhere:
        return ""
    held = (
        f"held by {named(holder.pod)} as {holding.resource.value}"
        for holder in ledger.holders_of(mask & elsewhere)
        for holding in holder.holdings
        if holding.mask & mask
    )
    return next(held, "held under another name")


def with_numa_nodes(
    machine: Machine, resource: Resource, devices: tuple[AdvertisedDevice, ...]
) -> tuple[AdvertisedDevice, ...]:
    """``devices`` with the NUMA node of each where it is known; an unknown one says nothing rather than 0."""
    geometry = machine.geometry
    masks = (mask_of(geometry, resource.unit, (int(device.id),)) for device in devices)
    owners = (geometry.devices_touched(mask)[0] for mask in masks)
    return tuple(
        replace(device, numa_nodes=(node,) if (node := machine.numa_nodes.get(owner, -1)) >= 0 else ())
        for device, owner in zip(devices, owners, strict=True)
    )


def told_machine(machine: Machine, quarantine: Quarantine | None) -> Machine:
    """What the cluster is told: devices that are not offered because of a vanished pod count as unhealthy."""
    suspect = quarantine.devices(machine.geometry) if quarantine else {}
    return replace(machine, unhealthy={**suspect, **machine.unhealthy}) if suspect else machine


def describe(machine: Machine) -> dict[str, object]:
    """The machine in a few fields, for a log line."""
    return {
        "instance_type": machine.geometry.instance_type,
        "devices": len(machine.listed),
        "cores": len(ids_of(machine.geometry, Unit.CORE, machine.geometry.devices_mask(machine.listed))),
        "unhealthy": dict(machine.unhealthy) or "none",
    }


def same_ids(one: Machine, other: Machine) -> bool:
    """Whether a core id means the same silicon in both."""
    return one.geometry.cores_per_device == other.geometry.cores_per_device


def _ids_of(ultraserver: UltraServer) -> dict[str, str]:
    """As the node's annotation names them; what there is not is left out."""
    ids = {
        "mode": ultraserver.mode,
        "serverId2": ultraserver.server_id_2,
        "nodeId2": ultraserver.node_id_2,
        "serverId4": ultraserver.server_id_4,
        "nodeId4": ultraserver.node_id_4,
    }
    return {name: value for name, value in ids.items() if value}


def _knowledge(geometry: Geometry) -> tuple[int, bool]:
    """How much a geometry tells: the driver lists no links while a device is missing."""
    return geometry.device_count, geometry.topology is not Topology.UNLINKED
