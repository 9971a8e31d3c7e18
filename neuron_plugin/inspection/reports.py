"""What ``devices`` and ``topology`` report, as documents for scripts.

The shapes are an interface: within a ``version`` keys are only added. Unlike ``neuron-ls`` they also hold devices that
should be present and are not, why a device is not allocatable, and who holds what. ``neuron_ls_of`` is the same machine
in the shape of ``neuron-ls -j``, as far as sysfs and /proc show it.
"""

from __future__ import annotations

import enum
import re
from pathlib import Path

import msgspec

from neuron_plugin.hardware import Severity, device_processes
from neuron_plugin.inspection.holders import Holders
from neuron_plugin.inspection.machine import Machine
from neuron_plugin.topology import CoreMask, Geometry, Topology, Unit, cores_in, valid_counts, valid_sets

VERSION = 1


class Health(enum.StrEnum):
    """A device's state in one word."""

    HEALTHY = "healthy"
    WARNING = "warning"
    """Allocatable, with something to know."""
    RESETTING = "resetting"
    """Ends by itself; containers wait."""
    UNHEALTHY = "unhealthy"
    """Not allocatable."""
    SKIPPED = "skipped"
    """The driver lists it, but it cannot be used."""
    MISSING = "missing"
    """The instance type has it, and the driver does not list it."""


_BY_SEVERITY = {
    Severity.HEALTHY: Health.HEALTHY,
    Severity.WARNING: Health.WARNING,
    Severity.PASSING: Health.RESETTING,
    Severity.UNHEALTHY: Health.UNHEALTHY,
}


class HolderReport(msgspec.Struct, frozen=True, rename="camel"):
    """One container with cores of a device; all of them: the whole device."""

    namespace: str
    pod: str
    container: str
    resource: str
    cores: tuple[int, ...]


class EccReport(msgspec.Struct, frozen=True, rename="camel"):
    """Uncorrected errors since the last power cycle."""

    sram: int
    memory: int
    repairable: int


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One device. ``holders`` is None where they are not known; any other unknown value is None or empty."""

    id: int
    node: str
    health: Health
    reasons: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    physical_cores: int = 0
    product: str = ""
    architecture: str = ""
    connected: tuple[int, ...] = ()
    numa_node: int | None = None
    memory_bytes: int | None = None
    serial_number: str = ""
    reset: str | None = None
    ecc: EccReport | None = None
    holders: tuple[HolderReport, ...] | None = None


class MachineReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One machine. ``absence`` says why there is no device; ``links_from`` is ``driver`` or ``instance-type``."""

    version: int = VERSION
    instance_type: str
    topology: str
    device_count: int
    cores_per_device: int
    logical_core_size: int
    driver_version: str | None
    links_from: str
    devices: tuple[DeviceReport, ...]
    holders_known: bool
    absence: str = ""
    notes: tuple[str, ...] = ()


def machine_report(machine: Machine, holders: Holders) -> MachineReport:
    """The report of ``devices``."""
    inventory, geometry = machine.inventory, machine.geometry
    assumed = "the driver prints no links (it does so while a device is missing): those of the instance type are shown"
    return MachineReport(
        instance_type=inventory.instance_type or (machine.instance.name if machine.instance else ""),
        topology=geometry.topology.value if geometry else "",
        device_count=geometry.device_count if geometry else 0,
        cores_per_device=inventory.cores_per_device,
        logical_core_size=inventory.logical_core_size.size,
        driver_version=inventory.driver_version.text if inventory.driver_version else None,
        links_from="instance-type" if machine.links_are_assumed else "driver",
        devices=_devices(machine, holders),
        holders_known=holders.ledger is not None,
        absence=inventory.absence,
        notes=(
            *inventory.problems,
            *([assumed] if machine.links_are_assumed else []),
            *([holders.note] if holders.note else []),
        ),
    )


def _devices(machine: Machine, holders: Holders) -> tuple[DeviceReport, ...]:
    """Every device: usable, skipped or missing, by ascending id."""
    geometry, instance, links, dev = machine.geometry, machine.instance, machine.links, machine.paths.dev
    numa_nodes = instance.numa_nodes if instance else ()
    reports = []
    for device in machine.inventory.devices:
        mask, ecc = geometry.device_mask(device.id) if geometry else CoreMask(0), device.health.ecc
        findings = machine.verdicts[device.id].findings
        worst = max((finding.severity for finding in findings), default=Severity.HEALTHY)
        held = None
        if geometry and holders.ledger is not None:
            held = tuple(
                HolderReport(
                    each.pod.namespace, each.pod.name, each.container, each.resource.value, cores_in(each.mask & mask)
                )
                for each in holders.ledger.overlapping(mask)
            )
        report = DeviceReport(
            id=device.id,
            node=str(dev / f"neuron{device.id}"),
            health=_BY_SEVERITY[worst],
            reasons=(*(finding.text for finding in findings), *device.problems),
            cores=cores_in(mask),
            physical_cores=device.cores,
            product=device.device_name,
            architecture=device.architecture,
            connected=tuple(sorted(links[device.id])),
            numa_node=numa_nodes[device.id] if device.id < len(numa_nodes) else None,
            memory_bytes=(instance.memory_gib if instance else 0) * 2**30 or None,
            serial_number=device.serial_number,
            reset=device.health.reset.name.lower() if device.health.reset is not None else None,
            ecc=EccReport(ecc.sram, ecc.memory, ecc.repairable) if ecc else None,
            holders=held,
        )
        reports.append(report)
    absent = [(int(skipped.id), Health.SKIPPED, skipped.reason) for skipped in machine.inventory.skipped]
    reason = f"{machine.inventory.instance_type or 'this type'} has it, the driver does not list it"
    absent += [(missing, Health.MISSING, reason) for missing in machine.missing]
    for number, health, why in absent:
        reports.append(DeviceReport(id=number, node=str(dev / f"neuron{number}"), health=health, reasons=(why,)))
    return tuple(sorted(reports, key=lambda report: report.id))


class LinkedDevice(msgspec.Struct, frozen=True, rename="camel"):
    """A device that the machine has, or should have; a missing or unhealthy one has no ``free_cores``."""

    id: int
    connected: tuple[int, ...]
    cores: tuple[int, ...]
    free_cores: tuple[int, ...]


class DeviceSets(msgspec.Struct, frozen=True, rename="camel"):
    """A count of devices that a pod can request, its valid sets, and those of them that are free."""

    count: int
    sets: tuple[tuple[int, ...], ...]
    free_sets: tuple[tuple[int, ...], ...]


class TopologyReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One machine. Without ``holders_known``, what is called free is free unless a pod holds it."""

    version: int = VERSION
    instance_type: str
    topology: str
    links_from: str
    holders_known: bool
    devices: tuple[LinkedDevice, ...]
    device_sets: tuple[DeviceSets, ...]
    core_counts: tuple[int, ...]
    free_core_counts: tuple[int, ...]
    notes: tuple[str, ...]


def topology_report(machine: Machine, geometry: Geometry, holders: Holders, report: MachineReport) -> TopologyReport:
    """The report of ``topology``; ``report`` is that of ``devices`` for the same machine."""
    free = machine.usable_mask & ~(holders.ledger.used_mask if holders.ledger else 0)
    links, sets, devices = machine.links, [], []
    for count in valid_counts(geometry, Unit.DEVICE):
        masks = valid_sets(geometry, Unit.DEVICE, count)
        fitting = tuple(geometry.whole_devices(mask) for mask in masks if mask & free == mask)
        sets.append(DeviceSets(count, tuple(geometry.whole_devices(mask) for mask in masks), fitting))
    counts = valid_counts(geometry, Unit.CORE)
    core_sets = {count: valid_sets(geometry, Unit.CORE, count) for count in counts}
    for device in range(geometry.device_count):
        mask, connected = geometry.device_mask(device), tuple(sorted(links.get(device, ())))
        devices.append(LinkedDevice(device, connected, cores_in(mask), cores_in(CoreMask(mask & free))))
    return TopologyReport(
        instance_type=report.instance_type,
        topology=report.topology,
        links_from=report.links_from,
        holders_known=report.holders_known,
        devices=tuple(devices),
        device_sets=tuple(sets),
        core_counts=counts,
        free_core_counts=tuple(count for count in counts if any(mask & free == mask for mask in core_sets[count])),
        notes=report.notes,
    )


class NeuronLsProcess(msgspec.Struct, frozen=True):
    """A process as neuron-ls prints it. Only the runtime itself knows its version."""

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
    neuron_processes: tuple[NeuronLsProcess, ...]


def neuron_ls_of(machine: Machine, report: MachineReport, proc: Path = Path("/proc")) -> tuple[NeuronLsDevice, ...]:
    """The devices that neuron-ls would list: the usable ones.

    ``bdf`` and the runtime versions of processes, which neuron-ls learns by ioctl, are empty.
    """
    usable = [device for device in report.devices if device.id in machine.inventory.device_ids]
    processes = device_processes([Path(device.node) for device in usable], proc)
    sysfs = machine.paths.sysfs
    asset_tag = _read(sysfs / "class/dmi/id/board_asset_tag")  # on Nitro machines EC2 writes the instance id there
    return tuple(
        NeuronLsDevice(
            instance_type=report.instance_type,
            instance_id=asset_tag if re.fullmatch(r"i-[0-9a-f]{8,32}", asset_tag) else "",
            neuron_device=device.id,
            bdf="",
            cpu_affinity=_read(sysfs / f"devices/system/node/node{device.numa_node}/cpulist"),
            numa_node=str(-1 if device.numa_node is None else device.numa_node),
            connected_to=None if report.topology == Topology.SINGLE else device.connected,
            nc_count=len(device.cores),
            logical_neuroncore_config=report.logical_core_size,
            memory_size=device.memory_bytes or 0,
            neuroncore_ids=device.cores,
            neuron_processes=tuple(
                NeuronLsProcess(process.pid, process.command) for process in processes.get(Path(device.node), ())
            ),
        )
        for device in usable
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
