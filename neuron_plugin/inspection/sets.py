"""What ``topology`` tells beside its drawing, as one value: links, and which sets exist and are free.

The shape is a promise to scripts: keys are only added within a ``version``.
"""

from __future__ import annotations

import msgspec

from neuron_plugin.inspection.devices import MachineReport
from neuron_plugin.inspection.holders import Holders
from neuron_plugin.inspection.machine import Machine
from neuron_plugin.topology import CoreMask, Geometry, Unit, cores_in, valid_counts, valid_sets

VERSION = 1


class LinkedDevice(msgspec.Struct, frozen=True, rename="camel"):
    """One device the machine has, or should have; ``free_cores`` of a missing or unhealthy one are none."""

    id: int
    connected: tuple[int, ...]
    cores: tuple[int, ...]
    free_cores: tuple[int, ...]


class DeviceSets(msgspec.Struct, frozen=True, rename="camel"):
    """A count of devices that can be asked for: the sets that would do, and those of them that are free."""

    count: int
    sets: tuple[tuple[int, ...], ...]
    free_sets: tuple[tuple[int, ...], ...]


class TopologyReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One machine. Without ``holders_known`` everything free is so unless a pod holds it."""

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


def topology_report(seen: Machine, geometry: Geometry, holders: Holders, report: MachineReport) -> TopologyReport:
    """The report of one look; ``report`` is what ``devices`` tells of the same."""
    free = seen.usable_mask & ~(holders.ledger.used_mask if holders.ledger is not None else 0)
    counts = valid_counts(geometry, Unit.CORE)
    return TopologyReport(
        instance_type=report.instance_type,
        topology=report.topology,
        links_from=report.links_from,
        holders_known=report.holders_known,
        devices=tuple(_device(seen, geometry, device, free) for device in range(geometry.device_count)),
        device_sets=tuple(_sets(geometry, count, free) for count in valid_counts(geometry, Unit.DEVICE)),
        core_counts=counts,
        free_core_counts=tuple(count for count in counts if _fitting(geometry, free, Unit.CORE, count)),
        notes=report.notes,
    )


def _device(seen: Machine, geometry: Geometry, device: int, free: int) -> LinkedDevice:
    mask = geometry.device_mask(device)
    connected = tuple(sorted(seen.links.get(device, frozenset())))
    return LinkedDevice(device, connected, cores_in(mask), cores_in(CoreMask(mask & free)))


def _sets(geometry: Geometry, count: int, free: int) -> DeviceSets:
    sets = tuple(geometry.whole_devices(mask) for mask in valid_sets(geometry, Unit.DEVICE, count))
    fitting = tuple(geometry.whole_devices(mask) for mask in _fitting(geometry, free, Unit.DEVICE, count))
    return DeviceSets(count, sets, fitting)


def _fitting(geometry: Geometry, free: int, unit: Unit, count: int) -> list[CoreMask]:
    return [mask for mask in valid_sets(geometry, unit, count) if mask & free == mask]
