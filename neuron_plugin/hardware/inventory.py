"""One look at this machine's Neuron hardware.

Pure reading: nothing is kept, retried or waited for between two looks (``watch`` does that), and nothing found in
sysfs or /dev is an error of ours. A device is either known completely or skipped with a reason, so no half-known
one is ever offered; a machine without driver or devices is an inventory that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from neuron_plugin.hardware.device import DeviceReader
from neuron_plugin.hardware.generations import GENERATIONS
from neuron_plugin.hardware.logical_cores import LogicalCoreSize, choose_logical_core_size
from neuron_plugin.hardware.records import Device, Inventory, SkippedDevice
from neuron_plugin.hardware.sysfs import AttributeMissingError, Sysfs, SysfsError, read_text
from neuron_plugin.hardware.ultraserver import read_ultraserver
from neuron_plugin.topology import MOST_DEVICES, Catalogue, DeviceId, InstanceType, catalogue

EVERY_DEVICE = frozenset(DeviceId(device) for device in range(MOST_DEVICES))
"""For a single look: no device is given more time, what is known is what counts."""

LOGICAL_NC_CONFIG = Path("opt/aws/neuron/logical_nc_config")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class MachinePaths:
    """Where this machine's sysfs, device nodes and host-wide LNC file are to be read."""

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    logical_nc_config: Path = Path("/") / LOGICAL_NC_CONFIG

    @classmethod
    def under(cls, root: Path) -> MachinePaths:
        """The paths of a simulated machine, or of a host mounted at ``root``."""
        return cls(root / "sys", root / "dev", root / LOGICAL_NC_CONFIG)


def read_inventory(
    paths: MachinePaths,
    *,
    environ: Mapping[str, str] | None = None,
    settled: Container[DeviceId] = (),
    types: Catalogue | None = None,
) -> Inventory:
    """Read the machine. Never raises for what it finds, and never writes.

    The driver makes a device's attributes after announcing the device. One without all of them is skipped as
    incomplete, unless it is among ``settled``: then the wait is over, and what is still missing is taken from the
    instance type. What a driver of this version cannot have (``connected_devices`` before 2.13.4) is not waited for.
    ``environ`` is where LNC may be set, nothing by default; ``types`` are the instance types known by name.
    """
    sysfs = Sysfs(paths.sysfs)
    problems: list[str] = []
    instance_type = _said(sysfs.instance_type, "", problems)  # no DMI in some containers
    known = (catalogue() if types is None else types).get(instance_type)
    listed, absence = _listed(sysfs)
    driver = _said(sysfs.driver_version, None, problems)
    devices, skipped = _read_devices(DeviceReader(sysfs, paths.dev, known, driver), listed, settled)
    lnc = _logical_core_size(paths.logical_nc_config, environ or {}, devices[0] if devices else None, known, problems)
    return Inventory(
        devices=devices,
        skipped=skipped,
        driver_version=driver,
        instance_type=instance_type,
        logical_core_size=lnc,
        ultraserver=read_ultraserver(sysfs),
        absence="" if devices else absence or _unusable(skipped),
        problems=(*problems, *lnc.problems),
    )


def _listed(sysfs: Sysfs) -> tuple[Sequence[DeviceId], str]:
    """Devices the driver lists, and what to say if there are none."""
    try:
        listed = sysfs.device_ids()
    except AttributeMissingError:
        return (), f"{sysfs.class_dir} does not exist: the Neuron driver is not loaded, or sysfs is not mounted here"
    except SysfsError as error:
        return (), str(error)
    return listed, "" if listed else f"{sysfs.class_dir} lists no device: the driver found no Neuron hardware"


def _read_devices(
    reader: DeviceReader, listed: Sequence[DeviceId], settled: Container[DeviceId]
) -> tuple[tuple[Device, ...], tuple[SkippedDevice, ...]]:
    found = [reader.read(device, settled=device in settled) for device in listed]
    alike, odd = _sort_out([item for item in found if isinstance(item, Device)])
    skipped = [item for item in found if isinstance(item, SkippedDevice)] + odd
    return tuple(alike), tuple(sorted(skipped, key=lambda item: item.id))


def _sort_out(devices: list[Device]) -> tuple[list[Device], list[SkippedDevice]]:
    """Part devices that are of the machine's kind from odd ones.

    Core ids are ``device * cores + k``, so one device with another number of cores would move everybody's ids.
    """
    kinds = Counter((device.device_name, device.cores) for device in devices)
    usual = kinds.most_common(1)[0][0] if kinds else ("", 0)
    alike = [device for device in devices if (device.device_name, device.cores) == usual]
    odd = [
        SkippedDevice(
            device.id,
            f"neuron{device.id} is {_kind(device.device_name, device.cores)}, most devices here are {_kind(*usual)}",
        )
        for device in devices
        if (device.device_name, device.cores) != usual
    ]
    return alike, odd


def _kind(device_name: str, cores: int) -> str:
    return f"{device_name or 'unnamed'} with core_count {cores}"


def _unusable(skipped: Sequence[SkippedDevice]) -> str:
    if not skipped:
        return "every device vanished while it was read"
    return f"none of {len(skipped)} devices can be used; neuron{skipped[0].id}: {skipped[0].reason}"


def _said(read: Callable[[], Value], nothing: Value, problems: list[str]) -> Value:
    """What the machine says of itself, all of it refinements; ``nothing`` where it does not say."""
    try:
        return read()
    except AttributeMissingError:
        pass
    except SysfsError as error:
        problems.append(str(error))
    return nothing


def _logical_core_size(
    host_file: Path, environ: Mapping[str, str], sample: Device | None, known: InstanceType | None, problems: list[str]
) -> LogicalCoreSize:
    """LNC by the product of ``sample`` (any device), else by the instance type, else one."""
    cores = sample.cores if sample else known.cores_per_device if known else 0
    if not cores:
        return LogicalCoreSize(1, "no device to ask")
    generation = GENERATIONS.get(sample.device_name if sample else known.device_name if known else "")
    default = generation.default_logical_core_size if generation else known.logical_core_size if known else 1
    return choose_logical_core_size(
        default=default if default in range(1, cores + 1) and cores % default == 0 else 1,
        largest=generation.largest_logical_core_size if generation else cores,
        cores_per_device=cores,
        environ=environ,
        host_file=_said(partial(read_text, host_file), "", problems),
    )
