"""How much the cores of each device execute, by two looks at the driver's counters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from neuron_plugin.hardware import Inventory
from neuron_plugin.hardware.core_counters import HAS_LIVE_TIME, CoreCounterReader, CoreCounters, PhysicalCore
from neuron_plugin.plugin.settings import PluginSettings

_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device: the share of its cores' time in percent, and its allocated memory; None where it is not known."""

    busy_percent: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CountersRead:
    """The counters of all cores of a machine, and when they were read."""

    at: float
    cores: Mapping[PhysicalCore, CoreCounters]


def read_counters(settings: PluginSettings, inventory: Inventory) -> CountersRead:
    """Read the counters of every core that the machine lists."""
    cores = [(int(device.id), core) for device in inventory.devices for core in range(device.cores)]
    return CountersRead(time.monotonic(), CoreCounterReader(settings.sysfs).read(cores, inventory.driver_version))


def device_use(first: CountersRead, last: CountersRead) -> dict[int, DeviceUse]:
    """What the devices did between two readings."""
    by_device: dict[int, list[PhysicalCore]] = {}
    for core in last.cores:
        by_device.setdefault(core[0], []).append(core)
    microseconds = (last.at - first.at) * _MICROSECONDS
    use = {}
    for device, cores in by_device.items():
        executed = [_executed(first.cores.get(core, CoreCounters()), last.cores[core]) for core in cores]
        memory = [last.cores[core].memory_bytes for core in cores]
        use[device] = DeviceUse(
            None
            if None in executed
            else min(100, round(100 * sum(filter(None, executed)) / microseconds / len(cores))),
            None if None in memory else sum(filter(None, memory)),
        )
    return use


def use_note(inventory: Inventory) -> str:
    """Why no device's use is known; empty where it can be."""
    driver = inventory.driver_version
    if driver is None or driver.at_least(*HAS_LIVE_TIME):
        return ""
    return (
        f"driver {driver.text} counts the time of a process only when the process ends: the use is not known before "
        f"driver {'.'.join(map(str, HAS_LIVE_TIME))}"
    )


def _executed(first: CoreCounters, last: CoreCounters) -> int | None:
    before, after = first.busy_microseconds, last.busy_microseconds
    return None if before is None or after is None else after - before if after >= before else after
