"""The machine in the shape of ``neuron-ls -j``, for scripts that read that.

What that tool learns from ioctls is filled in as far as sysfs and /proc tell: ``bdf`` and the processes' runtime
versions are empty, and links are sorted by id.
Source of the shape: neuron-ls on a trn2 machine; every key is there for every device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from neuron_plugin.hardware import Device, device_processes
from neuron_plugin.inspection.devices import DeviceReport, MachineReport
from neuron_plugin.inspection.machine import Machine
from neuron_plugin.topology import Topology


class Process(msgspec.Struct, frozen=True):
    """A process as neuron-ls prints it; the runtime's version is the runtime's secret."""

    pid: int
    command: str
    neuron_runtime_version: str = ""


class NeuronLsDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device, keys as neuron-ls prints them. ``nc_count`` and ``neuroncore_ids`` are logical cores."""

    instance_type: str
    instance_id: str
    neuron_device: int
    bdf: str
    cpu_affinity: str
    numa_node: str
    connected_to: tuple[int, ...] | None
    nc_count: int
    logical_neuroncore_config: int
    memory_size: int
    neuroncore_ids: tuple[int, ...]
    neuron_processes: tuple[Process, ...]


def neuron_ls_of(machine: Machine, report: MachineReport, proc: Path = Path("/proc")) -> tuple[NeuronLsDevice, ...]:
    """The devices that neuron-ls would list: those that are known completely."""
    known: Mapping[int, Device] = {device.id: device for device in machine.inventory.devices}
    nodes = [Path(device.node) for device in report.devices if device.id in known]
    processes = device_processes(nodes, proc)
    instance_id = _instance_id(machine.paths.sysfs)
    return tuple(
        NeuronLsDevice(
            instance_type=report.instance_type,
            instance_id=instance_id,
            neuron_device=device.id,
            bdf="",
            cpu_affinity=_cpus(machine.paths.sysfs, device.numa_node),
            numa_node=str(-1 if device.numa_node is None else device.numa_node),
            connected_to=_connected(report, device),
            nc_count=len(device.cores),
            logical_neuroncore_config=report.logical_core_size,
            memory_size=device.memory_bytes or 0,
            neuroncore_ids=device.cores,
            neuron_processes=tuple(Process(each.pid, each.command) for each in processes.get(Path(device.node), ())),
        )
        for device in report.devices
        if device.id in known
    )


def _connected(report: MachineReport, device: DeviceReport) -> tuple[int, ...] | None:
    return None if report.topology == Topology.SINGLE else device.connected


def _instance_id(sysfs: Path) -> str:
    """EC2 writes it into DMI's asset tag on Nitro machines; empty elsewhere."""
    text = _read(sysfs / "class/dmi/id/board_asset_tag")
    return text if re.fullmatch(r"i-[0-9a-f]{8,32}", text) else ""


def _cpus(sysfs: Path, numa_node: int | None) -> str:
    return "" if numa_node is None else _read(sysfs / f"devices/system/node/node{numa_node}/cpulist")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
