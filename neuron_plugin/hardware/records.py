"""What one look at the machine found: immutable values, compared to see whether anything changed.

Kept apart from the reading, so that everybody who asks about a machine imports values and no file access.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from neuron_plugin.hardware.attributes import DriverVersion, ResetState
from neuron_plugin.hardware.logical_cores import LogicalCoreSize
from neuron_plugin.hardware.ultraserver import UltraServer
from neuron_plugin.topology import DeviceId


class NodeState(enum.StrEnum):
    """What stands at ``/dev/neuronN``."""

    PRESENT = "present"
    ABSENT = "absent"
    NOT_A_DEVICE = "not a character device"
    STALE = "of another driver instance"
    """A character device whose numbers are not the driver's: left from before a reload."""


@dataclass(frozen=True, slots=True)
class EccCounts:
    """Errors in memory since the last power cycle (a module reload keeps them).

    ``repairable`` ones are mended by the next reset. Before driver 2.28 some of those are counted as ``memory``.
    """

    sram: int = 0
    memory: int = 0
    repairable: int = 0


@dataclass(frozen=True, slots=True)
class CoreErrors:
    """How often work on one physical core ended in a hardware error, since the driver was loaded.

    Named as the driver names them, below ``neuron_coreK/stats/status``. They can be zeroed by writing to them.
    """

    core: int
    hw_error: int = 0
    hw_nc_ue_error: int = 0
    hw_hbm_ue_error: int = 0
    hw_dma_abort_error: int = 0


@dataclass(frozen=True, slots=True)
class HealthReadings:
    """What the driver says of a device's health. None or empty: there is no such attribute, or it cannot be read now.

    ``status_counts`` are the counters below ``health_status`` (driver 2.28), by file name.
    """

    reset: ResetState | None = None
    ecc: EccCounts | None = None
    unhealthy_components: frozenset[str] | None = None
    core_errors: tuple[CoreErrors, ...] = ()
    status_counts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One device that is completely known.

    ``id`` is N of ``/dev/neuronN``. ``cores`` is physical. ``connected`` is what the driver prints, which is nothing
    for every device while one chip of the machine is missing. ``problems`` are attributes that could not be used.
    """

    id: DeviceId
    cores: int
    device_name: str
    architecture: str
    connected: frozenset[DeviceId]
    node: NodeState
    serial_number: str = ""
    health: HealthReadings = field(default_factory=HealthReadings)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SkippedDevice:
    """A device that the driver lists and that is not offered. ``reason`` names the file and what it reads.

    ``incomplete``: the driver has not made all its attributes yet, so it is worth looking again soon.
    """

    id: DeviceId
    reason: str
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """One snapshot of a machine's Neuron hardware. Devices ascend by id and may have gaps.

    All devices have the same number of cores: one that differs from most is among the skipped.
    ``instance_type`` is the EC2 type by DMI, empty if this is none. ``absence`` says why there is no device at all,
    and is empty where there is one.
    """

    devices: tuple[Device, ...] = ()
    skipped: tuple[SkippedDevice, ...] = ()
    driver_version: DriverVersion | None = None
    instance_type: str = ""
    logical_core_size: LogicalCoreSize = LogicalCoreSize(1, "hardware default")  # noqa: RUF009 - frozen itself
    ultraserver: UltraServer | None = None
    absence: str = ""
    problems: tuple[str, ...] = ()

    @property
    def device_ids(self) -> tuple[DeviceId, ...]:
        """Ids of the known devices, ascending."""
        return tuple(device.id for device in self.devices)

    @property
    def device_name(self) -> str:
        """The product, such as ``Trainium1``; empty without a device."""
        return self.devices[0].device_name if self.devices else ""

    @property
    def physical_cores_per_device(self) -> int:
        """As sysfs counts them; 0 without a device."""
        return self.devices[0].cores if self.devices else 0

    @property
    def cores_per_device(self) -> int:
        """Logical cores of a device, as Kubernetes and the runtime count them; 0 without a device."""
        return self.physical_cores_per_device // self.logical_core_size.size

    @property
    def links(self) -> dict[DeviceId, frozenset[DeviceId]]:
        """Who is connected to whom, as the driver prints it."""
        return {device.id: device.connected for device in self.devices}

    @property
    def incomplete(self) -> frozenset[DeviceId]:
        """Devices whose attributes the driver is still making."""
        return frozenset(device.id for device in self.skipped if device.incomplete)
