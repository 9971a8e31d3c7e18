"""What an inventory answers about itself."""

from __future__ import annotations

from neuron_plugin.hardware.logical_cores import LogicalCoreSize
from neuron_plugin.hardware.records import Device, Inventory, NodeState, SkippedDevice
from neuron_plugin.topology import DeviceId


def device(number: int, *neighbours: int) -> Device:
    connected = frozenset(DeviceId(neighbour) for neighbour in neighbours)
    return Device(DeviceId(number), 8, "Trainium2", "NDv3", connected, NodeState.PRESENT)


def test_an_inventory_of_nothing_answers_everything() -> None:
    nothing = Inventory(absence="no driver")
    assert (nothing.device_ids, nothing.links, nothing.incomplete) == ((), {}, frozenset())
    assert (nothing.device_name, nothing.physical_cores_per_device, nothing.cores_per_device) == ("", 0, 0)


def test_cores_are_counted_physically_and_logically() -> None:
    inventory = Inventory(devices=(device(0),), logical_core_size=LogicalCoreSize(2, "hardware default"))
    assert (inventory.physical_cores_per_device, inventory.cores_per_device) == (8, 4)


def test_links_are_by_id_also_with_gaps() -> None:
    inventory = Inventory(devices=(device(0, 3), device(3, 0)))
    assert inventory.links == {0: {3}, 3: {0}}


def test_only_devices_that_the_driver_still_makes_are_incomplete() -> None:
    skipped = (SkippedDevice(DeviceId(1), "garbage"), SkippedDevice(DeviceId(2), "not yet", incomplete=True))
    assert Inventory(skipped=skipped).incomplete == {2}


def test_inventories_are_compared_by_value() -> None:
    assert Inventory(devices=(device(0, 1),)) == Inventory(devices=(device(0, 1),))
    assert Inventory(devices=(device(0, 1),)) != Inventory(devices=(device(0),))
