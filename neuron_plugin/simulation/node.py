"""A machine with Neuron hardware, as a directory: ``sys/``, ``dev/`` and the host's LNC file.

For the demo, tests, planning, and a real kubelet without hardware. What is written has the driver's bytes, names and
modes, so that everything that reads a real machine reads this one without noticing. Faults are changes of the machine's
description; readers may scan meanwhile. So files change in the order in which a driver works: a file is made aside and
renamed into place, a device's directory is made whole before it appears and renamed away before it is emptied. What is
aside lies in the machine's directory (one file system), outside sys/ and dev/. The description is written last: a
reader who finds it finds what it says.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from neuron_plugin.hardware import GENERATIONS, SIMULATED_MARKER, MachinePaths, ResetState
from neuron_plugin.hardware.device import CORE_ERROR_COUNTERS
from neuron_plugin.simulation.node_tree import (
    DEVICE_MEMORY,
    HEALTH_STATUS,
    LIVE_TIME,
    MAJOR,
    NEWEST_DRIVER,
    NEWEST_DRIVER_FOR_INF1,
    TIME_IN_USE,
    UNHEALTHY_COMPONENTS,
    File,
    NodeDescription,
    SimulationError,
    check,
    class_files,
    device_files,
    work_file,
)
from neuron_plugin.topology import Catalogue, catalogue

HELD_PERCENT = 60
"""How busy the cores of a held device are, where nothing else was said."""
HELD_MEMORY = 6 * 2**30
"""What the cores of a device that a pod has do by themselves, and have allocated each."""
DESCRIPTION_FILE = "node.json"

_ASIDE = ".aside"
_LOCK = ".lock"
KMSG = "kmsg"

_ERROR_LEVEL = 3
"""LOG_ERR of syslog."""
_USER_FACILITY = 1 << 3
"""LOG_USER of syslog: what a process writes into the kernel log."""


def write_node(
    root: Path,
    instance_type: str,
    *,
    driver_version: str = "",
    logical_core_size: int | None = None,
    missing: Iterable[int] = (),
    char_nodes: bool = False,
    usage_counters: bool = True,
    work_counters: bool = False,
    ultraserver: Mapping[str, str] | None = None,
    types: Catalogue | None = None,
) -> SimulatedNode:
    """Write a machine of ``instance_type`` into ``root``, which must be empty or not exist.

    ``driver_version`` is by default the newest that has this product. ``logical_core_size`` (LNC) goes into the
    host's file, which is not written without. ``missing`` chips never came up. ``char_nodes`` makes real character
    devices, which takes root and which a real container runtime needs; else plain files take their place.
    ``usage_counters=False`` leaves out the counters of memory and of the cores' work, which hardly any program but a
    monitor reads: 100 files for each core, 13 000 on a Trn2. ``work_counters`` leaves those three in that tell how much
    a core is used, and whether its resets fail. ``ultraserver`` are the driver's class attributes of one.

    Raises:
        SimulationError: an unknown type, a directory in use, or a machine that cannot be.
    """
    known = catalogue() if types is None else types
    instance = known.get(instance_type)
    if instance is None:
        raise SimulationError(f"instance type {instance_type!r} is not known: choose among {', '.join(sorted(known))}")
    if instance.device_name not in GENERATIONS:
        raise SimulationError(f"{instance_type} has devices named {instance.device_name!r}, which no known driver has")
    default_driver = NEWEST_DRIVER_FOR_INF1 if instance.device_name == "Inferentia" else NEWEST_DRIVER
    description = NodeDescription(
        instance_type=instance.name,
        device_name=instance.device_name,
        device_count=instance.devices,
        driver_version=driver_version or default_driver,
        logical_core_size=logical_core_size,
        missing=tuple(sorted(set(missing))),
        char_nodes=char_nodes,
        usage_counters=usage_counters,
        work_counters=work_counters,
        ultraserver=dict(ultraserver or {}),
    )
    check(description)
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise SimulationError(f"{root} is not empty: choose another directory or empty it")
    with exclusively(root):
        TreeWriter(root).build(description)
    return SimulatedNode(root)


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A simulated machine in ``root``. It keeps nothing in memory: any process may change it at any time."""

    root: Path

    @classmethod
    def open(cls, root: Path) -> SimulatedNode:
        """The machine that is already in ``root``.

        Raises:
            SimulationError: there is none.
        """
        read_description(root)
        return cls(root)

    @property
    def paths(self) -> MachinePaths:
        """Where a reader finds this machine."""
        return MachinePaths.under(self.root)

    @property
    def description(self) -> NodeDescription:
        """What the machine is, and its faults, at this moment."""
        return read_description(self.root)

    def set_ecc(
        self, device: int, *, sram: int | None = None, memory: int | None = None, repairable: int | None = None
    ) -> None:
        """Set counters of uncorrected ECC errors; those not given stay."""
        if self.description.generation.device_arch == "NDv1":
            raise SimulationError("Inferentia has no ECC counters in sysfs: take another type")
        given = {"sram_ecc": sram, "memory_ecc": memory, "repairable_ecc": repairable}
        self._change(device, **{name: count for name, count in given.items() if count is not None})

    def set_reset(self, device: int, state: ResetState) -> None:
        """Let a reset run, succeed or fail. The node stays, and there is no uevent."""
        self._change(device, reset=int(state))

    def set_unhealthy_components(self, device: int, components: Collection[str]) -> None:
        """Let firmware report broken parts; none: all are well again."""
        self._check_has("unhealthy_components", UNHEALTHY_COMPONENTS)
        self._change(device, unhealthy_components=tuple(components))

    def set_error_events(self, device: int, count: int) -> None:
        """Set firmware's counter of hardware error events below ``health_status``."""
        self._check_has("health_status", HEALTH_STATUS)
        self._change(device, error_events=count)

    def set_core_errors(self, device: int, core: int, **counts: int) -> None:
        """Set counters of hardware errors of a physical core, such as ``hw_nc_ue_error``; those not given stay."""
        if not self.description.usage_counters:
            raise SimulationError("this node was written without usage counters, which those of errors are among")
        cores = range(self.description.generation.cores_per_device)
        unknown = sorted(set(counts) - set(CORE_ERROR_COUNTERS))
        if unknown or core not in cores:
            said = f"core {core}, counter {', '.join(unknown or counts)}"
            raise SimulationError(
                f"{said}: expected a core from 0 to {cores[-1]} and one of {', '.join(CORE_ERROR_COUNTERS)}"
            )
        errors = self.description.device(device).core_errors
        self._change(device, core_errors={**errors, core: {**errors.get(core, {}), **counts}})

    def set_busy(self, device: int, percent: int | None) -> None:
        """How much of the time the cores of a device execute from now on; None: as is usual."""
        self._check_counts_work()
        self._change(device, busy_percent=percent)

    def set_reset_failures(self, device: int, count: int) -> None:
        """Set the counter of failed resets, which the driver keeps for each core of the device."""
        self._check_counts_work()
        self._change(device, reset_failures=count)

    def work(self, seconds: float, held: Collection[int]) -> None:
        """Let so much time pass for the cores: what pods ``held`` is busy unless it was set otherwise.

        Its files alone are changed. They are no part of the description, as the counters of a driver are not.
        """
        with exclusively(self.root):
            there = read_description(self.root)
            counts_live = there.driver.at_least(*LIVE_TIME)
            for device in there.loaded:
                usual = HELD_PERCENT if device in held else 0
                percent = there.device(device).busy_percent
                executed = int(seconds * 1e4 * (usual if percent is None else percent)) if counts_live else 0
                memory = HELD_MEMORY if device in held else 0
                for core in range(there.generation.cores_per_device):
                    add_to_counter(self.root, device, work_file(core, TIME_IN_USE), executed)
                    set_counter(self.root, device, work_file(core, DEVICE_MEMORY), memory)

    def log_kernel_message(self, text: str, *, by_kernel: bool = True) -> None:
        """Write a record of one line into the kernel log, as the kernel would or as a process may.

        Raises:
            SimulationError: the machine's directory is not there.
        """
        path = self.paths.dev / KMSG
        if not path.is_file():
            raise SimulationError(f"{path} is not there: write a simulated node first")
        priority, microseconds = _ERROR_LEVEL | (0 if by_kernel else _USER_FACILITY), int(time.monotonic() * 1e6)
        with exclusively(self.root), path.open("rb+") as log:
            sequence = log.read().count(b"\n")
            log.write(f"{priority},{sequence},{microseconds},-;{' '.join(text.split())}\n".encode())

    def remove_device(self, device: int) -> None:
        """Take a device away, with its node, as when its PCI function is removed."""
        self._change(device, loaded=False)

    def restore_device(self, device: int) -> None:
        """Bring a device back."""
        self._change(device, loaded=True)

    def remove_node(self, device: int) -> None:
        """Delete ``/dev/neuronN`` only."""
        self._change(device, node=False)

    def restore_node(self, device: int) -> None:
        """Make ``/dev/neuronN`` again."""
        self._change(device, node=True)

    def set_attribute(self, device: int, name: str, text: str | None) -> None:
        """Let one sysfs attribute (a path below the device) read ``text``, or not be there, as while it is made."""
        self._override(device, name, {name: text})

    def restore_attribute(self, device: int, name: str) -> None:
        """Let one sysfs attribute read as it should."""
        self._override(device, name, {})

    def unload_driver(self) -> None:
        """Take the module away: no class directory, no nodes."""
        self._change(driver_loaded=False)

    def load_driver(self) -> None:
        """Load the module again; the devices come back with the counters they had."""
        self._change(driver_loaded=True)

    def reboot(self) -> None:
        """Start the machine again: devices that came up at its start are back and well, and the kernel log is empty."""
        self._change(devices={}, driver_loaded=True)
        (self.paths.dev / KMSG).write_bytes(b"")

    def set_logical_core_size(self, size: int | None) -> None:
        """Change LNC in the host's file; None removes the file."""
        self._change(logical_core_size=size)

    def _override(self, device: int, name: str, override: dict[str, str | None]) -> None:
        relative = Path(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise SimulationError(f"attribute {name!r}: expected a path below the device, such as core_count")
        kept = {path: text for path, text in self.description.device(device).overrides.items() if path != name}
        self._change(device, overrides=kept | override)

    def _check_counts_work(self) -> None:
        if not (self.description.usage_counters or self.description.work_counters):
            raise SimulationError("this node was written without usage counters, which those of work are among")

    def _check_has(self, what: str, since: tuple[int, ...]) -> None:
        description = self.description
        if description.generation.device_arch == "NDv1" or not description.driver.at_least(*since):
            raise SimulationError(
                f"driver {description.driver_version} on {description.device_name} has no {what}: "
                f"write the node with driver {NEWEST_DRIVER}, not Inf1"
            )

    def _change(self, device: int | None = None, **fields: object) -> None:
        """Change fields of one device, or of the machine."""
        with exclusively(self.root):
            before = read_description(self.root)
            if device is not None:
                if device not in before.chips:
                    raise SimulationError(f"device {device}: {before.in_words}")
                state = msgspec.structs.replace(before.device(device), **fields)
                fields = {"devices": {**before.devices, device: state}}
            after = msgspec.structs.replace(before, **fields)
            check(after)
            TreeWriter(self.root).change(before, after)


# Its files.


def read_description(root: Path) -> NodeDescription:
    """The description of the machine in ``root``.

    Raises:
        SimulationError: there is none, or it is not one of ours.
    """
    path = root / DESCRIPTION_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=NodeDescription)
    except OSError as error:
        raise SimulationError(f"{root} holds no simulated node ({error.strerror}): write one there first") from error
    except msgspec.DecodeError as error:
        raise SimulationError(f"{path} does not describe a simulated node: {error}") from error


@contextmanager
def exclusively(root: Path) -> Iterator[None]:
    """Hold the machine in ``root`` against other processes that change it."""
    with (root / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file; held for as long as a tree takes to write
        yield


def write_file(root: Path, path: Path, file: File) -> None:
    """Put ``file`` at ``path``, whole and with its mode, whatever was there."""
    with _made_aside(root, path) as aside:
        _create(aside, file)


def write_char_node(root: Path, path: Path, major: int, minor: int) -> None:
    """Put a character device at ``path``. Takes root (CAP_MKNOD)."""
    with _made_aside(root, path) as aside:
        os.mknod(aside, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        aside.chmod(0o666)


def write_directory(root: Path, path: Path, files: Mapping[str, File], links: Mapping[str, str]) -> None:
    """Make a directory of ``files`` and symbolic ``links`` appear at ``path`` at once, whatever was there."""
    remove(root, path)  # a writer that was killed may have got this far
    with _made_aside(root, path) as aside:
        aside.mkdir()
        for parent in sorted({(aside / name).parent for name in files}):
            parent.mkdir(parents=True, exist_ok=True)
        for name, file in files.items():
            _create(aside / name, file)
        for name, target in links.items():
            (aside / name).symlink_to(target)


def write_link(root: Path, path: Path, target: str) -> None:
    """Put a symbolic link at ``path``."""
    with _made_aside(root, path) as aside:
        aside.symlink_to(target)


def remove(root: Path, path: Path) -> None:
    """Make ``path``, a file or a directory, disappear at once. What is not there is fine."""
    aside = _aside(root)
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    else:
        aside.unlink()


def update_files(root: Path, directory: Path, before: Mapping[str, File], after: Mapping[str, File]) -> None:
    """Change what differs between two tables of the files in ``directory``."""
    for name in before.keys() - after.keys():
        remove(root, directory / name)
    for name, file in after.items():
        if before.get(name) != file:
            write_file(root, directory / name, file)


def set_counter(root: Path, device: int, name: str, count: int) -> None:
    """Let a counter of a loaded device read ``count``; one that the driver does not have stays away."""
    path = root / f"sys/devices/virtual/neuron_device/neuron{device}" / name
    try:
        before = path.read_text("ascii")
    except FileNotFoundError:
        return
    if before != f"{count}\n":
        write_file(root, path, File(f"{count}\n"))


def add_to_counter(root: Path, device: int, name: str, count: int) -> None:
    """Let a counter of a loaded device read ``count`` more."""
    path = root / f"sys/devices/virtual/neuron_device/neuron{device}" / name
    if count and path.exists():
        write_file(root, path, File(f"{int(path.read_text('ascii')) + count}\n"))


@contextmanager
def _made_aside(root: Path, path: Path) -> Iterator[Path]:
    """A free place to make what appears at ``path`` then."""
    aside = _aside(root)
    yield aside
    path.parent.mkdir(parents=True, exist_ok=True)
    aside.replace(path)


def _aside(root: Path) -> Path:
    """A free place; only the holder of the machine's lock uses it."""
    directory = root / _ASIDE
    directory.mkdir(exist_ok=True)
    path = directory / "next"
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # left behind by one who was killed
    else:
        path.unlink(missing_ok=True)
    return path


def _create(path: Path, file: File) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, file.text.encode())
        os.fchmod(descriptor, file.mode)  # the umask has no say in sysfs
    finally:
        os.close(descriptor)


class TreeWriter:
    """The files of the machine in ``root``; its user holds the machine (``exclusively``)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = MachinePaths.under(root)
        self.class_dir = self.paths.sysfs / "class/neuron_device"
        self.device_dir = self.paths.sysfs / "devices/virtual/neuron_device"
        self.module_dir = self.paths.sysfs / "module/neuron"

    def build(self, description: NodeDescription) -> None:
        """Write a machine that is not there yet."""
        dmi = self.paths.sysfs / "devices/virtual/dmi/id"
        write_file(self.root, dmi / "product_name", File(description.instance_type + "\n", 0o444))
        write_link(self.root, self.paths.sysfs / "class/dmi/id", "../../devices/virtual/dmi/id")
        write_file(self.root, self.paths.dev / SIMULATED_MARKER, File("plain files stand for device nodes here\n"))
        write_file(self.root, self.paths.dev / KMSG, File(""))
        self.change(msgspec.structs.replace(description, driver_loaded=False, logical_core_size=None), description)

    def change(self, before: NodeDescription, after: NodeDescription) -> None:
        """Turn one machine into another: the module before its devices, a device before its node, and back."""
        for device in sorted(set(before.loaded) - set(after.loaded)):
            for directory in (self.paths.dev, self.class_dir, self.device_dir):
                remove(self.root, directory / f"neuron{device}")
        if before.driver_loaded and not after.driver_loaded:
            for directory in (self.class_dir, self.device_dir, self.module_dir):
                remove(self.root, directory)
        elif after.driver_loaded and not before.driver_loaded:
            version = File(after.driver_version + "\n", 0o444)
            write_directory(self.root, self.module_dir, {"version": version}, {})
            write_directory(self.root, self.class_dir, class_files(after), {})
        for device in sorted(set(before.loaded) & set(after.loaded)):
            old, new = device_files(before, device), device_files(after, device)
            update_files(self.root, self.device_dir / f"neuron{device}", old, new)
        for device in sorted(set(after.loaded) - set(before.loaded)):
            name, links = f"neuron{device}", {"subsystem": "../../../../class/neuron_device"}
            write_directory(self.root, self.device_dir / name, device_files(after, device), links)
            write_link(self.root, self.class_dir / name, f"../../devices/virtual/neuron_device/{name}")
        for device in after.loaded:
            node = self.paths.dev / f"neuron{device}"
            wanted, there = after.device(device).node, node.exists()
            if there and not wanted:
                remove(self.root, node)
            elif wanted and not there and after.char_nodes:
                write_char_node(self.root, node, MAJOR, device)
            elif wanted and not there:
                write_file(self.root, node, File("", 0o666))
        if before.logical_core_size != after.logical_core_size:
            path, size = self.paths.logical_nc_config, after.logical_core_size
            if size is None:
                remove(self.root, path)
            else:
                write_file(self.root, path, File(f"NEURON_LOGICAL_NC_CONFIG={size}\n"))
        self._describe(after)

    def _describe(self, description: NodeDescription) -> None:
        """Last, so that a change which was cut short is completed when it is made again."""
        described = msgspec.json.format(msgspec.json.encode(description), indent=2).decode()
        write_file(self.root, self.root / DESCRIPTION_FILE, File(described + "\n"))
