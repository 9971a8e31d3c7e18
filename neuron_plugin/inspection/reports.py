"""The reports of ``devices`` and ``topology``, as documents for scripts.

The shapes are an interface: within a ``version`` keys are only added. Unlike ``neuron-ls`` they also have missing
devices, the reasons why a device is not allocatable, and the holders.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from neuron_plugin.allocation import Ledger, NodeInventory
from neuron_plugin.allocation.inventory import DISABLED_REASON
from neuron_plugin.allocation.pod import mask_union
from neuron_plugin.hardware import EccCounts
from neuron_plugin.hardware.health_signals import Severity
from neuron_plugin.inspection.facts import DeviceUsers
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.inspection.holders import Holders
from neuron_plugin.inspection.machine import DeviceUse, InspectedMachine, use_note
from neuron_plugin.topology import CoreMask, Unit, cores_in, sets_by_count


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
    """One container with cores of a device; all of them: the whole device.

    With ``claim``, a claim's name, it is all containers of the pod that use the claim, and ``container`` is empty.
    """

    namespace: str
    pod: str
    container: str
    resource: str
    cores: tuple[int, ...]
    claim: str = ""


class ProcessReport(msgspec.Struct, frozen=True, rename="camel"):
    """A process that has a device open. ``pod_uid`` is empty outside of pods."""

    pid: int
    command: str
    pod_uid: str


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One device. ``holders`` is None where they are not known; any other unknown value is None or empty.

    ``processes`` have it open; None if not looked for. ``busy_percent``, how much its cores executed, and
    ``used_memory_bytes``, the memory allocated on it, are None unless they were measured. ``disabled``: an operator has
    taken it out of service, healthy or not. ``held_down_cores`` are not given to a pod, because a process of an ended
    pod lives.
    """

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
    ecc: EccCounts | None = None
    holders: tuple[HolderReport, ...] | None = None
    disabled: bool = False
    processes: tuple[ProcessReport, ...] | None = None
    busy_percent: int | None = None
    used_memory_bytes: int | None = None
    held_down_cores: tuple[int, ...] = ()


class MachineReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One machine. ``absence`` says why there is no device; ``links_from`` is ``driver`` or ``instance-type``."""

    version: int = 1
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


def machine_report(
    machine: InspectedMachine,
    holders: Holders,
    users: DeviceUsers | Unknown | None = None,
    use: Mapping[int, DeviceUse] | None = None,
) -> MachineReport:
    """The report of ``devices``. ``users`` is None if processes were not looked for.

    ``use`` is None if it was not measured.
    """
    inventory, geometry, instance, dev = machine.inventory, machine.geometry, machine.instance, machine.paths.dev
    numa_nodes, links = instance.numa_nodes if instance else (), machine.links
    devices = []
    for device in inventory.devices:
        mask = geometry.device_mask(device.id) if geometry else CoreMask(0)
        findings, reset = machine.verdicts[device.id].findings, device.health.reset
        worst = max((finding.severity for finding in findings), default=Severity.HEALTHY)
        resting = holders.snapshot.inputs.hold_downs if holders.snapshot else ()
        report = DeviceReport(
            id=device.id,
            node=str(dev / f"neuron{device.id}"),
            health=_BY_SEVERITY[worst],
            reasons=(
                *(finding.text for finding in findings),
                *device.problems,
                *([DISABLED_REASON] if device.id in machine.disabled else []),
                *(hold_down.reason for hold_down in resting if hold_down.mask & mask),
            ),
            cores=cores_in(mask),
            physical_cores=device.cores,
            product=device.device_name,
            architecture=device.architecture,
            connected=tuple(sorted(links[device.id])),
            numa_node=numa_nodes[device.id] if device.id < len(numa_nodes) else None,
            memory_bytes=(instance.memory_gib if instance else 0) * 2**30 or None,
            serial_number=device.serial_number,
            reset=reset.name.lower() if reset is not None else None,
            ecc=device.health.ecc,
            holders=holders_on(holders.ledger, mask),
            disabled=device.id in machine.disabled,
            processes=tuple(
                ProcessReport(process.pid, process.command, process.pod_uid)
                for process in users.users
                if int(device.id) in process.devices
            )
            if isinstance(users, DeviceUsers)
            else None,
            busy_percent=(measured := (use or {}).get(int(device.id), DeviceUse())).busy_percent,
            used_memory_bytes=measured.memory_bytes,
            held_down_cores=cores_in(mask & mask_union(resting)),
        )
        devices.append(report)
    absent = [(int(skipped.id), Health.SKIPPED, skipped.reason) for skipped in inventory.skipped]
    reason = f"{inventory.instance_type or 'this type'} has it, the driver does not list it"
    absent += [(missing, Health.MISSING, reason) for missing in machine.missing]
    for number, health, why in absent:
        mask = geometry.device_mask(number) if geometry and number < geometry.device_count else CoreMask(0)
        held = holders_on(holders.ledger, mask)
        node = str(dev / f"neuron{number}")
        devices.append(DeviceReport(id=number, node=node, health=health, reasons=(why,), holders=held))
    assumed = "the driver prints no links (it does so while a device is missing): those of the instance type are shown"
    notes = [*inventory.problems, assumed if machine.links_are_assumed else "", holders.note]
    notes += [use_note(inventory)] if use is not None else []
    hidden = users.hidden if isinstance(users, DeviceUsers) else users
    notes += [f"processes: {hidden.why}; {hidden.action}"] if hidden else []
    return MachineReport(
        instance_type=inventory.instance_type or (instance.name if instance else ""),
        topology=geometry.topology.value if geometry else "",
        device_count=geometry.device_count if geometry else 0,
        cores_per_device=inventory.cores_per_device,
        logical_core_size=inventory.logical_core_size.size,
        driver_version=inventory.driver_version.text if inventory.driver_version else None,
        links_from="instance-type" if machine.links_are_assumed else "driver",
        devices=tuple(sorted(devices, key=lambda device: device.id)),
        holders_known=holders.ledger is not None,
        absence=inventory.absence,
        notes=tuple(note for note in notes if note),
    )


def holders_on(ledger: Ledger | None, mask: CoreMask) -> tuple[HolderReport, ...] | None:
    """Who has some of a device; a pod keeps a device that is missing by now."""
    if ledger is None:
        return None
    return tuple(
        HolderReport(
            holder.pod.namespace,
            holder.pod.name,
            holder.container,
            holder.resource.value,
            cores_in(holder.mask & mask),
            holder.claim,
        )
        for holder in ledger.overlapping(mask)
    )


class LinkedDevice(msgspec.Struct, frozen=True, rename="camel"):
    """A device that the machine has, or should have; a missing or unhealthy one has no ``free_cores``."""

    id: int
    connected: tuple[int, ...]
    cores: tuple[int, ...]
    free_cores: tuple[int, ...]


class DeviceSets(msgspec.Struct, frozen=True, rename="camel"):
    """A count of devices that a pod can request, its valid sets, and its free sets."""

    count: int
    sets: tuple[tuple[int, ...], ...]
    free_sets: tuple[tuple[int, ...], ...]


class TopologyReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One machine. Without ``holders_known``, what is called free is free unless a pod holds it.

    ``core_block_sizes``: of how many devices slices of cores are, where these are aligned; empty where they are not.
    """

    version: int = 1
    instance_type: str
    topology: str
    links_from: str
    holders_known: bool
    devices: tuple[LinkedDevice, ...]
    device_sets: tuple[DeviceSets, ...]
    core_counts: tuple[int, ...]
    free_core_counts: tuple[int, ...]
    core_block_sizes: tuple[int, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShownNode:
    """A node as its topology is shown. ``ledger`` is None where the holders are not known.

    ``offered_mask`` are the cores that are given to pods, in use or not, and ``free_mask`` those that are free.
    """

    inventory: NodeInventory
    links: Mapping[int, frozenset[int]]
    ledger: Ledger | None
    offered_mask: int
    free_mask: int


def shown_machine(machine: InspectedMachine, holders: Holders) -> ShownNode | None:
    """The machine that was looked at; None without a device."""
    if (inventory := machine.node_inventory) is None:
        return None
    if snapshot := holders.snapshot:
        return ShownNode(inventory, machine.links, holders.ledger, snapshot.offered_mask, snapshot.free_mask)
    return ShownNode(inventory, machine.links, None, machine.usable_mask, machine.usable_mask)


def topology_report(shown: ShownNode, report: MachineReport) -> TopologyReport:
    """The report of ``topology``; ``report`` is that of ``devices`` for the same machine."""
    geometry, free = shown.inventory.geometry, shown.free_mask
    sets, devices = [], []
    for count, masks in sets_by_count(geometry, Unit.DEVICE).items():
        fitting = tuple(geometry.whole_devices(mask) for mask in masks if mask & free == mask)
        sets.append(DeviceSets(count, tuple(geometry.whole_devices(mask) for mask in masks), fitting))
    windows = sets_by_count(geometry, Unit.CORE)
    for device in range(geometry.device_count):
        mask, connected = geometry.device_mask(device), tuple(sorted(shown.links.get(device, ())))
        devices.append(LinkedDevice(device, connected, cores_in(mask), cores_in(mask & free)))
    return TopologyReport(
        instance_type=report.instance_type,
        topology=report.topology,
        links_from=report.links_from,
        holders_known=report.holders_known,
        devices=tuple(devices),
        device_sets=tuple(sets),
        core_counts=tuple(windows),
        free_core_counts=tuple(count for count, masks in windows.items() if any(mask & free == mask for mask in masks)),
        core_block_sizes=geometry.core_block_sizes,
        notes=report.notes,
    )
