"""One machine's Neuron hardware, read once.

Only reads: nothing is kept, retried or waited for between two reads (``events`` does that), and no content of sysfs or
/dev raises an error. A device is either completely known or skipped with a reason, so an incomplete one is never
offered. A machine without driver or devices gives an inventory that says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from neuron_plugin.hardware.device import GENERATIONS, Device, SkippedDevice, read_device
from neuron_plugin.hardware.sysfs import (
    DriverVersion,
    Sysfs,
    SysfsError,
    parse_elected,
    read_attribute,
    read_or,
    read_text,
)
from neuron_plugin.topology import MOST_DEVICES, Catalogue, DeviceId, catalogue

EVERY_DEVICE = frozenset(DeviceId(device) for device in range(MOST_DEVICES))
"""For a single read: devices get no more time, incomplete ones are taken as they are."""

LOGICAL_NC_CONFIG = Path("opt/aws/neuron/logical_nc_config")
ENVIRONMENT_KEYS = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
"""The variables with which the runtime sets the logical core size, newer name first."""
_COMMENT = re.compile(r"#.*")
_ASSIGNMENT = re.compile(r"""^\s*(?:export\s+)?NEURON_LOGICAL_NC_CONFIG\s*=\s*["']?(.*?)["']?\s*$""", re.MULTILINE)

ELECTED = {
    "mode": "ultraserver_mode",
    "serverId2": "server_id_2",
    "nodeId2": "node_id_2",
    "serverId4": "server_id_4",
    "nodeId4": "node_id_4",
}
"""The driver's elected values for UltraServers of two and of four nodes: our names and the class attributes.

If devices are linked by a switch (Trn3pds), there is no election: ``reservation_id`` and ``node_id`` have the values.
"""
_NOT_ELECTED = frozenset({"", "0000000000000000", "-1", "busy"})


@dataclass(frozen=True, slots=True)
class MachinePaths:
    """The paths of this machine's sysfs, device nodes and host-wide LNC file."""

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    logical_nc_config: Path = Path("/") / LOGICAL_NC_CONFIG

    @classmethod
    def under(cls, root: Path) -> MachinePaths:
        """The paths of a simulated machine, or of a host mounted at ``root``."""
        return cls(root / "sys", root / "dev", root / LOGICAL_NC_CONFIG)


@dataclass(frozen=True, slots=True)
class LogicalCoreSize:
    """Physical cores per logical core (LNC), the source of the value, and ignored settings."""

    size: int
    source: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """One snapshot of a machine's Neuron hardware. Devices ascend by id and may have gaps.

    All devices have the same number of cores: a device that differs from most is skipped. ``instance_type`` is the EC2
    type by DMI, empty on other machines. ``ultraserver`` has this node's ids by the names of ``ELECTED``. ``absence``
    says why there is no device at all, and is empty if there is one.
    """

    devices: tuple[Device, ...] = ()
    skipped: tuple[SkippedDevice, ...] = ()
    driver_version: DriverVersion | None = None
    instance_type: str = ""
    logical_core_size: LogicalCoreSize = LogicalCoreSize(1, "hardware default")
    ultraserver: Mapping[str, str] = field(default_factory=dict)
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
        """Physical cores of a device, as in sysfs; 0 without a device."""
        return self.devices[0].cores if self.devices else 0

    @property
    def cores_per_device(self) -> int:
        """Logical cores of a device, which Kubernetes and the runtime count; 0 without a device."""
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
    """Read the machine. It never raises an error for what it reads, and never writes.

    The driver makes a device's attributes after announcing the device. A device without all of them is skipped as
    incomplete, unless it is in ``settled``: then missing ones are taken from the instance type. Attributes that this
    driver version does not have (``connected_devices`` before 2.13.4) are not waited for. ``environ`` may set LNC, and
    is empty by default; ``types`` are the known instance types by name.
    """
    sysfs = Sysfs(paths.sysfs)
    problems: list[str] = []
    instance_type = read_or(sysfs.instance_type, "", problems)  # no DMI in some containers
    known = (catalogue() if types is None else types).get(instance_type)
    listed, absence = list[DeviceId](), f"{sysfs.class_dir} lists no device: the driver found no Neuron hardware"
    try:
        listed = sysfs.device_ids()
    except SysfsError as error:
        loaded = "the Neuron driver is not loaded, or sysfs is not mounted here"
        absence = f"{sysfs.class_dir} does not exist: {loaded}" if error.missing else str(error)
    driver = read_or(sysfs.driver_version, None, problems)
    read = [
        read_device(sysfs, paths.dev, device, settled=device in settled, known=known, driver=driver)
        for device in listed
    ]
    complete = [device for device in read if isinstance(device, Device)]
    kinds = {device.id: f"{device.device_name or 'unnamed'} with core_count {device.cores}" for device in complete}
    usual = Counter(kinds.values()).most_common(1)[0][0] if kinds else ""
    devices = tuple(device for device in complete if kinds[device.id] == usual)
    # Core ids are device * cores + k, so a device with another number of cores would change all ids.
    reason = "neuron{} is {}, most devices here are {}"
    odd = [
        SkippedDevice(device_id, reason.format(device_id, kind, usual))
        for device_id, kind in kinds.items()
        if kind != usual
    ]
    skipped = sorted(
        [*(device for device in read if isinstance(device, SkippedDevice)), *odd], key=lambda device: device.id
    )
    host_file = read_or(partial(read_text, paths.logical_nc_config), "", problems)
    first = devices[0] if devices else None
    lnc = choose_logical_core_size(
        first.device_name if first else known.device_name if known else "",
        first.cores if first else known.cores_per_device if known else 0,
        known.logical_core_size if known else 1,
        environ or {},
        host_file,
    )
    if skipped:
        absence = f"none of {len(skipped)} devices can be used; neuron{skipped[0].id}: {skipped[0].reason}"
    elif listed:
        absence = "every device vanished while it was read"
    return Inventory(
        devices=devices,
        skipped=tuple(skipped),
        driver_version=driver,
        instance_type=instance_type,
        logical_core_size=lnc,
        ultraserver=read_ultraserver(sysfs),
        absence="" if devices else absence,
        problems=(*problems, *lnc.problems),
    )


def choose_logical_core_size(
    device_name: str, cores: int, nominal: int, environ: Mapping[str, str], host_file: str
) -> LogicalCoreSize:
    """The logical core size in force, for a product with so many physical ``cores`` per device.

    sysfs counts physical cores; Kubernetes, the runtime and all our ids count logical cores, so this number decides
    what an id means. Sources in order: the environment, ``host_file``, the product's default, and for an unknown
    product ``nominal``, the default of the instance type. ``host_file`` is the text of
    ``/opt/aws/neuron/logical_nc_config``, such as ``NEURON_LOGICAL_NC_CONFIG=1``; empty if the file is missing. A legal
    value is a power of two that divides ``cores`` and that the runtime allows. The runtime refuses ids by any other
    size, so an illegal value is ignored and reported.
    """
    if not cores:
        return LogicalCoreSize(1, "no device present")
    generation = GENERATIONS.get(device_name)
    largest = generation.largest_logical_core_size if generation else cores
    legal = {str(size): size for size in (1, 2, 4, 8) if size <= largest and cores % size == 0}
    sources = [(key, environ[key].strip()) for key in ENVIRONMENT_KEYS if environ.get(key)]
    if setting := _COMMENT.sub("", host_file).strip():
        assignments = _ASSIGNMENT.findall(setting)  # the last one counts, as in a shell
        sources.append(("logical_nc_config", assignments[-1] if assignments else setting))
    problems: list[str] = []
    for source, text in sources:
        if text in legal:
            return LogicalCoreSize(legal[text], source, tuple(problems))
        problems.append(
            f"{source} says {text[:40]!r}, expected a power of two, at most {largest}, that divides {cores} cores: "
            "ignored, correct or remove it"
        )
    default = generation.default_logical_core_size if generation else nominal
    return LogicalCoreSize(legal.get(str(default), 1), "hardware default", tuple(problems))


def read_ultraserver(sysfs: Sysfs) -> dict[str, str]:
    """The ids of this node in its UltraServer; empty if it is in none, or while the election runs.

    The drivers elect them over the links between servers and print ``busy`` meanwhile (up to 600 s). ``mode`` is the
    list of possible modes, such as ``1,3,4``; it differs between versions and is kept as read. Source: Neuron driver
    2.24.7, class attributes.
    """
    values = {name: text for name, attribute in ELECTED.items() if (text := _elected(sysfs, attribute))}
    server, node = _elected(sysfs, "reservation_id"), _elected(sysfs, "node_id")
    if server and node.isdigit():
        values |= _reserved_ids(values.get("mode", "").split(","), server, int(node))
    return values if values.keys() & {"serverId2", "serverId4"} else {}


def _elected(sysfs: Sysfs, attribute: str) -> str:
    """A class attribute; empty if it is missing or has no value.

    These attributes never affect which devices are handed out.
    """
    with suppress(SysfsError):  # other products have other files
        text = read_attribute(sysfs.class_dir / attribute, parse_elected)
        return "" if text in _NOT_ELECTED else text
    return ""


def _reserved_ids(modes: list[str], reservation: str, node: int) -> dict[str, str]:
    """The ids by ``ELECTED`` of a node in a reservation of two or four nodes; the modes say which.

    Mode 1 is for four nodes, modes 2 and 3 are for two. Of four, nodes 0 and 1 are in one rack, 2 and 3 in the other
    (driver 2.27.4). So these are the pairs; the driver has no id for a pair. AWS reads the same files in its
    k8s-ultraserver-init-script.sh (SDK 2.32).
    """
    pair = {"serverId2": reservation, "nodeId2": str(node % 2)} if {"2", "3"} & {*modes} else {}
    if "1" not in modes:
        return pair
    if pair:
        pair["serverId2"] = f"{reservation}-{node // 2}"
    return {**pair, "serverId4": reservation, "nodeId4": str(node)}
