"""The columns of ``devices``: one row a device, no cell but the last with blanks in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from neuron_plugin.inspection.devices import DeviceReport, Health, HolderReport, MachineReport
from neuron_plugin.inspection.text import plural, ranges

_GIB = 2**30

_STYLES = {
    Health.HEALTHY: "green",
    Health.WARNING: "yellow",
    Health.RESETTING: "yellow",
    Health.UNHEALTHY: "bold red",
    Health.SKIPPED: "bold red",
    Health.MISSING: "bold red",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and what stands under it; empty text is shown as ``-``."""

    heading: str
    cell: Callable[[DeviceReport], str]
    style: Callable[[DeviceReport], str] = lambda _device: ""


def columns_of(report: MachineReport, *, wide: bool) -> list[Column]:
    """The columns to show; the reasons' one only where some device has any."""
    driver = Column("DRIVER", lambda _device: report.driver_version or "")
    told = any(device.reasons for device in report.devices)
    return [*_COLUMNS, *([*_WIDE, driver] if wide else []), *([_REASONS] if told else [])]


def title_of(report: MachineReport) -> str:
    """The machine in one line."""
    there = sum(device.health not in {Health.MISSING, Health.SKIPPED} for device in report.devices)
    count = (
        plural(there, "device")
        if there == report.device_count
        else f"{there} of {plural(report.device_count, 'device')}"
    )
    cores = f"{plural(report.cores_per_device, 'core')} each (LNC {report.logical_core_size})"
    driver = f"driver {report.driver_version or 'unknown'}"
    return ", ".join([f"{report.instance_type or 'unknown type'}: {count}", cores, report.topology, driver])


def _holders(device: DeviceReport) -> str:
    if device.holders is None:
        return "?" if device.cores else ""
    return ",".join(_by_container(device, device.holders))


def _by_container(device: DeviceReport, holders: Iterable[HolderReport]) -> Iterable[str]:
    for holder in holders:
        name = f"{holder.namespace}/{holder.pod}/{holder.container}"
        yield name if holder.cores == device.cores else f"{name}[{ranges(holder.cores)}]"


def _ecc(device: DeviceReport) -> str:
    return f"{device.ecc.sram}/{device.ecc.memory}/{device.ecc.repairable}" if device.ecc else ""


def _memory(device: DeviceReport) -> str:
    return f"{device.memory_bytes // _GIB}Gi" if device.memory_bytes else ""


def _numa(device: DeviceReport) -> str:
    return "" if device.numa_node is None else str(device.numa_node)


_COLUMNS = (
    Column("DEVICE", lambda device: str(device.id)),
    Column("CORES", lambda device: ranges(device.cores)),
    Column("PRODUCT", lambda device: device.product),
    Column("ARCH", lambda device: device.architecture),
    Column("LINKS", lambda device: ",".join(map(str, device.connected))),
    Column("NUMA", _numa),
    Column("HEALTH", lambda device: device.health.value, lambda device: _STYLES[device.health]),
    Column("HOLDERS", _holders, lambda device: "cyan" if device.holders else "dim"),
)
_WIDE = (
    Column("MEMORY", _memory),
    Column("NODE", lambda device: device.node),
    Column("SERIAL", lambda device: device.serial_number),
    Column("RESET", lambda device: device.reset or ""),
    Column("ECC(SRAM/MEM/REPAIRABLE)", _ecc),
)
_REASONS = Column("REASON", lambda device: "; ".join(device.reasons), lambda _device: "yellow")
