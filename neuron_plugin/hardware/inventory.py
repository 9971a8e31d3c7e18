"""One machine's Neuron hardware, read once.

Pure reading: nothing is kept, retried or waited for between two reads (``events`` does that), and nothing found in
sysfs or /dev is an error of ours. A device is either known completely or skipped with a reason, so a half-known one is
never offered. A machine without driver or devices is an inventory that says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from neuron_plugin.hardware.device import GENERATIONS, Device, SkippedDevice, read_device
from neuron_plugin.hardware.sysfs import AttributeMissingError, DriverVersion, Sysfs, SysfsError, read_text
from neuron_plugin.topology import MOST_DEVICES, Catalogue, DeviceId, InstanceType, catalogue

EVERY_DEVICE = frozenset(DeviceId(device) for device in range(MOST_DEVICES))
"""For a single read: no device is given more time, what is known is what counts."""

LOGICAL_NC_CONFIG = Path("opt/aws/neuron/logical_nc_config")
ENVIRONMENT_KEYS = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
"""Where the runtime reads the logical core size, newer name first."""
_COMMENT = re.compile(r"#.*")
_ASSIGNMENT = re.compile(r"""^\s*(?:export\s+)?NEURON_LOGICAL_NC_CONFIG\s*=\s*["']?(.*?)["']?\s*$""", re.MULTILINE)

_NO_SERVER = {"", "0000000000000000", "busy"}
_NO_NODE = {"", "-1", "busy"}

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class MachinePaths:
    """Where to read this machine's sysfs, device nodes and host-wide LNC file."""

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    logical_nc_config: Path = Path("/") / LOGICAL_NC_CONFIG

    @classmethod
    def under(cls, root: Path) -> MachinePaths:
        """The paths of a simulated machine, or of a host mounted at ``root``."""
        return cls(root / "sys", root / "dev", root / LOGICAL_NC_CONFIG)


@dataclass(frozen=True, slots=True)
class LogicalCoreSize:
    """Physical cores per logical core (LNC), which source set it, and what was ignored on the way."""

    size: int
    source: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UltraServer:
    """Ids of this node in its UltraServer of two and of four nodes; empty where there is none.

    ``mode`` is the driver's list of possible modes, such as ``1,3,4``; it differs between versions and is kept as read.
    """

    mode: str
    server_id_2: str
    node_id_2: str
    server_id_4: str
    node_id_4: str


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
    logical_core_size: LogicalCoreSize = LogicalCoreSize(1, "hardware default")
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
        """Each device's neighbours, as the driver prints them."""
        return {device.id: device.connected for device in self.devices}

    @property
    def incomplete(self) -> frozenset[DeviceId]:
        """Devices whose attributes the driver is still making."""
        return frozenset(device.id for device in self.skipped if device.incomplete)


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
    instance_type = _read_or(sysfs.instance_type, "", problems)  # no DMI in some containers
    known = (catalogue() if types is None else types).get(instance_type)
    listed, absence = _listed(sysfs)
    driver = _read_or(sysfs.driver_version, None, problems)
    read = [
        read_device(sysfs, paths.dev, device, settled=device in settled, known=known, driver=driver)
        for device in listed
    ]
    devices, odd = _alike([device for device in read if isinstance(device, Device)])
    skipped = sorted([*(device for device in read if isinstance(device, SkippedDevice)), *odd], key=lambda one: one.id)
    host_file = _read_or(partial(read_text, paths.logical_nc_config), "", problems)
    lnc = _logical_core_size(devices, known, environ or {}, host_file)
    if not devices and not absence:
        absence = "every device vanished while it was read"
        if skipped:
            first = skipped[0]
            absence = f"none of {len(skipped)} devices can be used; neuron{first.id}: {first.reason}"
    return Inventory(
        devices=tuple(devices),
        skipped=tuple(skipped),
        driver_version=driver,
        instance_type=instance_type,
        logical_core_size=lnc,
        ultraserver=read_ultraserver(sysfs),
        absence=absence,
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


def _alike(devices: list[Device]) -> tuple[list[Device], list[SkippedDevice]]:
    """Separate devices of the machine's kind from odd ones.

    Core ids are ``device * cores + k``, so one device with another number of cores would move the ids of all.
    """
    kinds = Counter((device.device_name, device.cores) for device in devices)
    usual = kinds.most_common(1)[0][0] if kinds else ("", 0)

    def kind(device_name: str, cores: int) -> str:
        return f"{device_name or 'unnamed'} with core_count {cores}"

    alike: list[Device] = []
    odd: list[SkippedDevice] = []
    for device in devices:
        if (device.device_name, device.cores) == usual:
            alike.append(device)
        else:
            own = kind(device.device_name, device.cores)
            reason = f"neuron{device.id} is {own}, most devices here are {kind(*usual)}"
            odd.append(SkippedDevice(device.id, reason))
    return alike, odd


def _read_or(read: Callable[[], Value], default: Value, problems: list[str]) -> Value:
    """What the machine says of itself, all of it refinements; ``default`` where it does not say."""
    try:
        return read()
    except AttributeMissingError:
        pass
    except SysfsError as error:
        problems.append(str(error))
    return default


def _logical_core_size(
    devices: Sequence[Device], known: InstanceType | None, environ: Mapping[str, str], host_file: str
) -> LogicalCoreSize:
    """LNC by the product of the devices, else by the instance type, else one."""
    cores = devices[0].cores if devices else known.cores_per_device if known else 0
    if not cores:
        return LogicalCoreSize(1, "no device present")
    generation = GENERATIONS.get(devices[0].device_name if devices else known.device_name if known else "")
    default = generation.default_logical_core_size if generation else known.logical_core_size if known else 1
    return choose_logical_core_size(
        default=default if default in range(1, cores + 1) and cores % default == 0 else 1,
        largest=generation.largest_logical_core_size if generation else cores,
        cores_per_device=cores,
        environ=environ,
        host_file=host_file,
    )


def choose_logical_core_size(
    *, default: int, largest: int, cores_per_device: int, environ: Mapping[str, str], host_file: str
) -> LogicalCoreSize:
    """The logical core size in force.

    sysfs counts physical cores; Kubernetes, the runtime and all our ids count logical ones, so this number decides what
    an id means. Sources in order: the environment, ``host_file`` (the text of ``/opt/aws/neuron/logical_nc_config``,
    such as ``NEURON_LOGICAL_NC_CONFIG=1``; empty where there is none), the product's default. Legal is a power of two
    that divides ``cores_per_device`` and is at most ``largest``: ids by any other size would be refused by the runtime,
    so an illegal value is ignored and reported.
    """
    sources = [(key, environ[key].strip()) for key in ENVIRONMENT_KEYS if environ.get(key)]
    setting = _COMMENT.sub("", host_file).strip()
    if setting:
        assignments = _ASSIGNMENT.findall(setting)  # the last one counts, as in a shell
        sources.append(("logical_nc_config", assignments[-1] if assignments else setting))
    legal = {str(1 << bit) for bit in range(8) if 1 << bit <= largest and cores_per_device % (1 << bit) == 0}
    problems: list[str] = []
    for source, text in sources:
        if re.match(r"[0-9]{1,3}\Z", text) and str(int(text)) in legal:
            return LogicalCoreSize(int(text), source, tuple(problems))
        problems.append(
            f"{source} says {text[:40]!r}, expected a power of two, at most {largest}, that divides "
            f"{cores_per_device} cores: ignored, correct or remove it"
        )
    return LogicalCoreSize(default, "hardware default", tuple(problems))


def read_ultraserver(sysfs: Sysfs) -> UltraServer | None:
    """The UltraServer of this node; None where it is in none, or while the election runs.

    The driver elects it over the links between servers and prints ``busy`` meanwhile (up to 600 s). Source: Neuron
    driver 2.24.7, class attributes.
    """

    def elected(name: str, nothing: set[str]) -> str:
        try:
            text = sysfs.elected(name)
        except SysfsError:
            return ""  # other products have other files, and none of them matters to what is handed out
        return "" if text in nothing else text

    found = UltraServer(
        mode=elected("ultraserver_mode", {"busy"}),
        server_id_2=elected("server_id_2", _NO_SERVER),
        node_id_2=elected("node_id_2", _NO_NODE),
        server_id_4=elected("server_id_4", _NO_SERVER),
        node_id_4=elected("node_id_4", _NO_NODE),
    )
    return found if found.server_id_2 or found.server_id_4 else None
