"""What ``devices`` tells of a machine, as one value: printed as a table, JSON or YAML, compared by ``--watch``.

The shape is a promise to scripts: keys are only added within a ``version``. Unlike ``neuron-ls`` it also holds
devices that should be there and are not, why a device is not offered, and who holds what.
"""

from __future__ import annotations

import enum

import msgspec

from neuron_plugin.allocation import HolderLedger
from neuron_plugin.hardware import Device, EccCounts, Severity, SkippedDevice, Verdict
from neuron_plugin.inspection.holders import Holders
from neuron_plugin.inspection.machine import Machine
from neuron_plugin.topology import CoreMask, cores_in

VERSION = 1

_GIB = 2**30


class Health(enum.StrEnum):
    """A device's state in one word."""

    HEALTHY = "healthy"
    WARNING = "warning"
    """Something to know; it is handed out."""
    RESETTING = "resetting"
    """Ends by itself; containers wait."""
    UNHEALTHY = "unhealthy"
    """Not handed out."""
    SKIPPED = "skipped"
    """The driver lists it, but it cannot be used."""
    MISSING = "missing"
    """The instance type has it, and the driver does not list it."""


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
    """One device. ``holders`` is None where the kubelet did not tell; what is not known is None or empty."""

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


def report_of(machine: Machine, holders: Holders) -> MachineReport:
    """The report of one look."""
    inventory, geometry = machine.inventory, machine.geometry
    return MachineReport(
        instance_type=inventory.instance_type or (machine.instance.name if machine.instance else ""),
        topology=geometry.topology.value if geometry else "",
        device_count=geometry.device_count if geometry else 0,
        cores_per_device=inventory.cores_per_device,
        logical_core_size=inventory.logical_core_size.size,
        driver_version=inventory.driver_version.text if inventory.driver_version else None,
        links_from="instance-type" if machine.links_are_assumed else "driver",
        devices=_devices(machine, holders.ledger),
        holders_known=holders.ledger is not None,
        absence=inventory.absence,
        notes=_notes(machine, holders),
    )


def _notes(machine: Machine, holders: Holders) -> tuple[str, ...]:
    assumed = "the driver prints no links (it does so while a device is missing): those of the instance type are shown"
    return (
        *machine.inventory.problems,
        *([assumed] if machine.links_are_assumed else []),
        *([holders.note] if holders.note else []),
    )


def _devices(machine: Machine, ledger: HolderLedger | None) -> tuple[DeviceReport, ...]:
    known = [_known(machine, device, ledger) for device in machine.inventory.devices]
    skipped = [_skipped(machine, device) for device in machine.inventory.skipped]
    missing = [_missing(machine, device) for device in machine.missing]
    return tuple(sorted(known + skipped + missing, key=lambda report: report.id))


def _known(machine: Machine, device: Device, ledger: HolderLedger | None) -> DeviceReport:
    geometry, verdict = machine.geometry, machine.verdicts[device.id]
    mask = geometry.device_mask(device.id) if geometry else CoreMask(0)
    memory = machine.instance.memory_gib if machine.instance else 0
    return DeviceReport(
        id=device.id,
        node=_node(machine, device.id),
        health=_health(verdict),
        reasons=(*(finding.text for finding in verdict.findings), *device.problems),
        cores=cores_in(mask),
        physical_cores=device.cores,
        product=device.device_name,
        architecture=device.architecture,
        connected=tuple(sorted(machine.links[device.id])),
        numa_node=_numa_node(machine, device.id),
        memory_bytes=memory * _GIB or None,
        serial_number=device.serial_number,
        reset=device.health.reset.name.lower() if device.health.reset is not None else None,
        ecc=_ecc(device.health.ecc),
        holders=None if ledger is None or geometry is None else _holders(mask, ledger),
    )


def _skipped(machine: Machine, device: SkippedDevice) -> DeviceReport:
    return DeviceReport(id=device.id, node=_node(machine, device.id), health=Health.SKIPPED, reasons=(device.reason,))


def _missing(machine: Machine, device: int) -> DeviceReport:
    reason = f"{machine.inventory.instance_type or 'this type'} has it, the driver does not list it"
    return DeviceReport(id=device, node=_node(machine, device), health=Health.MISSING, reasons=(reason,))


def _node(machine: Machine, device: int) -> str:
    return str(machine.paths.dev / f"neuron{device}")


def _numa_node(machine: Machine, device: int) -> int | None:
    nodes = machine.instance.numa_nodes if machine.instance else ()
    return nodes[device] if device < len(nodes) else None


def _ecc(counts: EccCounts | None) -> EccReport | None:
    return EccReport(counts.sram, counts.memory, counts.repairable) if counts else None


def _health(verdict: Verdict) -> Health:
    worst = max((finding.severity for finding in verdict.findings), default=Severity.IGNORED)
    return _BY_SEVERITY[worst]


_BY_SEVERITY = {
    Severity.IGNORED: Health.HEALTHY,
    Severity.WARNING: Health.WARNING,
    Severity.PASSING: Health.RESETTING,
    Severity.UNHEALTHY: Health.UNHEALTHY,
}


def _holders(mask: CoreMask, ledger: HolderLedger) -> tuple[HolderReport, ...]:
    return tuple(
        HolderReport(
            holder.pod.namespace,
            holder.pod.name,
            holding.container,
            holding.resource.value,
            cores_in(holding.mask & mask),
        )
        for holder in ledger
        for holding in holder.holdings
        if holding.mask & mask
    )
