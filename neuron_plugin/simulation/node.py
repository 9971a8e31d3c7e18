"""A machine with Neuron hardware, as a directory: ``sys/``, ``dev/`` and the host's LNC file.

It is used by the demo, tests and planning, and with a real kubelet without hardware. The files have the driver's bytes,
names and modes, so every reader works as on a real machine. A fault is a change of the machine's description. Readers
may scan during a change, so files change in the driver's order. A file is written aside and renamed into place, and a
device's directory appears and disappears as a whole. The directory for this is below the machine's root (same file
system), outside sys/ and dev/. The description is written last.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from neuron_plugin.hardware import GENERATIONS, MachinePaths, ResetState
from neuron_plugin.hardware.device import CORE_ERROR_COUNTERS
from neuron_plugin.simulation.node_tree import (
    DESCRIPTION_FILE,
    DEVICE_MEMORY,
    HEALTH_STATUS,
    KMSG,
    LIVE_TIME,
    NEWEST_DRIVER,
    NEWEST_DRIVER_FOR_INF1,
    TIME_IN_USE,
    UNHEALTHY_COMPONENTS,
    CharNode,
    Directory,
    Entry,
    File,
    Link,
    NodeDescription,
    SimulationError,
    check,
    entries,
    work_file,
)
from neuron_plugin.topology import Catalogue, catalogue

HELD_PERCENT = 60
"""How busy the cores of a device in use are by default."""
HELD_MEMORY = 6 * 2**30
"""Bytes allocated on each core of a device in use."""
_ASIDE = ".aside"
_LOCK = ".lock"

_ERROR_LEVEL = 3
"""LOG_ERR of syslog."""
_USER_FACILITY = 1 << 3
"""LOG_USER of syslog: the facility of lines that a process writes into the kernel log."""


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

    ``driver_version`` defaults to the newest driver of the product. ``logical_core_size`` (LNC) is written into the
    host's file, if given. ``missing`` chips never came up. ``char_nodes`` makes real character devices instead of plain
    files; that needs root. ``usage_counters=False`` omits the memory and work counters that only monitors read (100
    files a core, 13 000 on a Trn2); ``work_counters`` keeps three of them for use and failed resets. ``ultraserver``
    are the driver's class attributes of an UltraServer.

    Raises:
        SimulationError: an unknown type, a directory in use, or an impossible machine.
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
        change(root, {}, entries(root, description))
    return SimulatedNode(root)


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A simulated machine in ``root``. It keeps nothing in memory, so any process can change it at any time."""

    root: Path

    @classmethod
    def open(cls, root: Path) -> SimulatedNode:
        """The machine in ``root``.

        Raises:
            SimulationError: there is none.
        """
        read_description(root)
        return cls(root)

    @property
    def paths(self) -> MachinePaths:
        """The paths for readers of this machine."""
        return MachinePaths.under(self.root)

    @property
    def description(self) -> NodeDescription:
        """The machine and its faults now."""
        return read_description(self.root)

    def set_ecc(
        self, device: int, *, sram: int | None = None, memory: int | None = None, repairable: int | None = None
    ) -> None:
        """Set counters of uncorrected ECC errors; None leaves a counter as it is."""
        if self.description.generation.device_arch == "NDv1":
            raise SimulationError("Inferentia has no ECC counters in sysfs: take another type")
        given = {"sram_ecc": sram, "memory_ecc": memory, "repairable_ecc": repairable}
        self._change(device, **{name: count for name, count in given.items() if count is not None})

    def set_reset(self, device: int, state: ResetState) -> None:
        """Set the reset state. The device node stays, and there is no uevent."""
        self._change(device, reset=int(state))

    def set_unhealthy_components(self, device: int, components: Collection[str]) -> None:
        """Let firmware report unhealthy components; an empty collection means none."""
        self._check_has("unhealthy_components", UNHEALTHY_COMPONENTS)
        self._change(device, unhealthy_components=tuple(components))

    def set_error_events(self, device: int, count: int) -> None:
        """Set the firmware's counter of hardware error events."""
        self._check_has("health_status", HEALTH_STATUS)
        self._change(device, error_events=count)

    def set_core_errors(self, device: int, core: int, **counts: int) -> None:
        """Set hardware error counters of a physical core, such as ``hw_nc_ue_error``."""
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
        """Set how busy the cores of a device are from now on; None: as is usual."""
        self._check_counts_work()
        self._change(device, busy_percent=percent)

    def set_reset_failures(self, device: int, count: int) -> None:
        """Set the counter of failed resets on each core of a device."""
        self._check_counts_work()
        self._change(device, reset_failures=count)

    def work(self, seconds: float, held: Collection[int]) -> None:
        """Advance the work counters by so much time. Devices ``held`` by pods are busy, except as `set_busy` says.

        Only the files change: the description does not include these counters.
        """
        with exclusively(self.root):
            there = read_description(self.root)
            counts_live = there.driver.at_least(*LIVE_TIME)
            for device in there.loaded:
                usual = HELD_PERCENT if device in held else 0
                percent = there.device(device).busy_percent
                executed = int(seconds * 1e4 * (usual if percent is None else percent)) if counts_live else 0
                memory = HELD_MEMORY if device in held else 0
                directory = self.paths.sysfs / f"class/neuron_device/neuron{device}"
                for core in range(there.generation.cores_per_device):
                    for name in (TIME_IN_USE, DEVICE_MEMORY):
                        path = directory / work_file(core, name)
                        with suppress(FileNotFoundError):  # not every driver has it
                            before = int(path.read_text("ascii"))
                            after = before + executed if name == TIME_IN_USE else memory
                            if after != before:
                                write_entry(self.root, path, File(f"{after}\n"))

    def log_kernel_message(self, text: str, *, by_kernel: bool = True) -> None:
        """Write a line into the kernel log, as the kernel or as a process.

        Raises:
            SimulationError: there is no kernel log.
        """
        path = self.paths.dev / KMSG
        if not path.is_file():
            raise SimulationError(f"{path} is not there: write a simulated node first")
        priority, microseconds = _ERROR_LEVEL | (0 if by_kernel else _USER_FACILITY), int(time.monotonic() * 1e6)
        with exclusively(self.root), path.open("rb+") as log:
            sequence = log.read().count(b"\n")
            log.write(f"{priority},{sequence},{microseconds},-;{' '.join(text.split())}\n".encode())

    def remove_device(self, device: int) -> None:
        """Remove a device and its node, as if its PCI function were removed."""
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
        """Let a sysfs attribute (a path below the device) read ``text``; None removes the file."""
        self._override(device, name, {name: text})

    def restore_attribute(self, device: int, name: str) -> None:
        """Restore a sysfs attribute."""
        self._override(device, name, {})

    def unload_driver(self) -> None:
        """Unload the driver: no class directory and no device nodes."""
        self._change(driver_loaded=False)

    def load_driver(self) -> None:
        """Load the driver again. The devices keep their counters."""
        self._change(driver_loaded=True)

    def reboot(self) -> None:
        """Reboot: all devices except missing ones are back and healthy, and the kernel log is empty."""
        self._change(devices={}, driver_loaded=True)
        (self.paths.dev / KMSG).write_bytes(b"")

    def set_logical_core_size(self, size: int | None) -> None:
        """Set LNC in the host's file; None removes the file."""
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
        """Change fields of a device or of the machine."""
        with exclusively(self.root):
            before = read_description(self.root)
            if device is not None:
                if device not in before.chips:
                    raise SimulationError(f"device {device}: {before.in_words}")
                state = msgspec.structs.replace(before.device(device), **fields)
                fields = {"devices": {**before.devices, device: state}}
            after = msgspec.structs.replace(before, **fields)
            check(after)
            change(self.root, entries(self.root, before), entries(self.root, after))


# Its files.


def read_description(root: Path) -> NodeDescription:
    """The description of the machine in ``root``.

    Raises:
        SimulationError: there is none, or it cannot be read.
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
    """Lock the machine in ``root`` against changes by other processes."""
    with (root / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file; held for as long as a tree takes to write
        yield


def change(root: Path, before: Mapping[Path, Entry], after: Mapping[Path, Entry]) -> None:
    """Change the files from one table to another: removals in reverse order, then new and changed entries in order.

    A repeated call completes an interrupted one, because the description is the last entry.
    """
    for path in reversed([*before]):
        if path not in after:
            remove(root, path)
    for path, entry in after.items():
        known = before.get(path)
        if isinstance(known, Directory) and isinstance(entry, Directory) and path.is_dir():
            for name in known.files.keys() - entry.files.keys():
                remove(root, path / name)
            for name, file in entry.files.items():
                if known.files.get(name) != file:
                    write_entry(root, path / name, file)
        elif known != entry or not os.path.lexists(path):
            write_entry(root, path, entry)


def write_entry(root: Path, path: Path, entry: Entry) -> None:
    """Put an entry at ``path`` in one step. A character device needs root (CAP_MKNOD)."""
    if isinstance(entry, Directory):
        remove(root, path)
    aside = _aside(root)
    match entry:
        case File():
            _create(aside, entry)
        case Link(target):
            aside.symlink_to(target)
        case CharNode(major, minor):
            os.mknod(aside, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            aside.chmod(0o666)
        case Directory(files, links):
            for parent in sorted({aside, *((aside / name).parent for name in files)}):
                parent.mkdir(parents=True, exist_ok=True)
            for name, file in files.items():
                _create(aside / name, file)
            for name, target in links.items():
                (aside / name).symlink_to(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside.replace(path)


def remove(root: Path, path: Path) -> None:
    """Remove a file or directory in one step, if it exists."""
    with suppress(FileNotFoundError):
        path.rename(_aside(root))
        _aside(root)


def _aside(root: Path) -> Path:
    """An unused path outside sys/ and dev/. Only the holder of the machine's lock uses it."""
    directory = root / _ASIDE
    directory.mkdir(exist_ok=True)
    path = directory / "next"
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def _create(path: Path, file: File) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, file.text.encode())
        os.fchmod(descriptor, file.mode)  # sysfs ignores the umask
    finally:
        os.close(descriptor)
