"""The node's inventory, from what sysfs shows at one moment.

Between two looks a device may vanish or the driver may be reloaded. A device that was listed once stays listed, as
unhealthy: the kubelet treats a device that leaves the list worse than a sick one. It shows the device as healthy in its
pod's status, and reads its topology without a nil check (pkg/kubelet/cm/devicemanager).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from neuron_plugin.allocation import NodeInventory
from neuron_plugin.hardware import Inventory
from neuron_plugin.hardware.health_signals import MISSING
from neuron_plugin.topology import Catalogue, DeviceId, Topology, geometry_of


def node_inventory(
    before: NodeInventory | None,
    seen: Inventory,
    types: Catalogue,
    instance_type: str,
    unhealthy: Mapping[int, str],
    disabled: Iterable[int] = (),
) -> NodeInventory | None:
    """The node's inventory after a look at the hardware, ``seen``; None while no device was ever found.

    ``instance_type`` is used where the machine does not name its own. ``unhealthy`` says which devices must not be
    handed out, and why; ``disabled`` which ones an operator has taken out of service. Core ids are never
    re-interpreted: with another number of cores per device the node is taken as it is seen now.
    """
    after = latest = _as_seen(seen, types, instance_type, unhealthy)
    if before and (latest is None or latest.geometry.cores_per_device == before.geometry.cores_per_device):
        gone = {device: MISSING for device in before.listed if latest is None or device not in latest.listed}
        if latest is None:
            after = replace(before, present=(), unhealthy=gone)
        else:
            known = latest.geometry, before.geometry  # the driver lists no links while a device is missing
            geometry = max(
                known, key=lambda geometry: (geometry.device_count, geometry.topology is not Topology.UNLINKED)
            )
            after = replace(latest, geometry=geometry, unhealthy={**latest.unhealthy, **gone})
    if after is None:
        return None
    return replace(after, disabled=tuple(sorted(set(disabled) & set(range(after.geometry.device_count)))))


def _as_seen(
    seen: Inventory, types: Catalogue, instance_type: str, unhealthy: Mapping[int, str]
) -> NodeInventory | None:
    """One look by itself. The devices that a known type should have and has not are listed as missing.

    A pod may have held such a device a moment ago, and a request for the whole node must not succeed without it.
    """
    if not seen.devices:
        return None
    geometry = geometry_of(
        types,
        seen.instance_type or instance_type,
        device_ids=seen.device_ids,
        cores_per_device=seen.cores_per_device,
        links={int(device): frozenset(map(int, linked)) for device, linked in seen.links.items()},
    )
    nominal = range(geometry.device_count) if geometry.instance_type in types else ()
    skipped = {int(device.id): device.reason for device in seen.skipped}
    present = tuple(map(int, seen.device_ids))
    absent = {device: skipped.get(device, MISSING) for device in nominal if DeviceId(device) not in seen.device_ids}
    return NodeInventory(
        geometry=geometry,
        present=present,
        unhealthy={**{device: why for device, why in unhealthy.items() if device in present}, **absent},
        device_name=seen.device_name,
        driver_version=seen.driver_version.text if seen.driver_version else "",
        logical_core_size=seen.logical_core_size.size,
        physical_cores_per_device=seen.physical_cores_per_device,
        ultraserver=seen.ultraserver,
    )
