"""How much the cores of each device execute, by two looks at the driver's counters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.hardware import Inventory
from neuron_plugin.hardware.core_counters import HAS_LIVE_TIME, CoreCounterReader
from neuron_plugin.plugin.settings import PluginSettings

if TYPE_CHECKING:
    from neuron_plugin.plugin.utilization import Reading


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device: the share of its cores' time in percent, and its allocated memory; None where it is not known."""

    busy_percent: int | None = None
    memory_bytes: int | None = None


def read_counters(settings: PluginSettings, inventory: Inventory) -> Reading:
    """Read the counters of every core that the machine lists."""
    from neuron_plugin.plugin.utilization import Reading

    cores = [(int(device.id), core) for device in inventory.devices for core in range(device.cores)]
    counters = CoreCounterReader(settings.sysfs).read(cores, inventory.driver_version)
    return Reading(time.monotonic(), time.time(), counters)


def device_use(first: Reading, last: Reading) -> dict[int, DeviceUse]:
    """What the devices did between two readings: the plugin's account of a container that has the whole device."""
    from neuron_plugin.plugin.utilization import ContainerKey, UseByContainer, use_after

    devices = {device: ContainerKey(PodReference(PodUid(""), "", ""), str(device)) for device, _ in last.cores}
    has = {key: frozenset(core for core in last.cores if core[0] == device) for device, key in devices.items()}
    use: UseByContainer = {}
    for reading in (first, last):
        use = use_after(use, has, reading, {})
    return {
        device: DeviceUse(round(100 * use[key].busy_share) if use[key].known else None, use[key].memory_bytes)
        for device, key in devices.items()
    }


def use_note(inventory: Inventory) -> str:
    """Why no device's use is known; empty where it can be."""
    driver = inventory.driver_version
    if driver is None or driver.at_least(*HAS_LIVE_TIME):
        return ""
    return (
        f"driver {driver.text} counts the time of a process only when the process ends: the use is not known before "
        f"driver {'.'.join(map(str, HAS_LIVE_TIME))}"
    )
