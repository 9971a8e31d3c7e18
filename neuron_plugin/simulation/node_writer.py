"""Files of a simulated machine, changed in the order in which a driver works and so that no reader sees half a file.

A file is made aside and renamed into place, a device's directory is made whole before it appears and renamed away
before it is emptied. What is aside lies in the machine's directory (one file system), outside sys/ and dev/. The
description is written last: a reader who finds it finds what it says.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from neuron_plugin.hardware import SIMULATED_MARKER, MachinePaths
from neuron_plugin.simulation.node_tree import MAJOR, File, NodeDescription, SimulationError, class_files, device_files

DESCRIPTION_FILE = "node.json"

_ASIDE = ".aside"
_LOCK = ".lock"
KMSG = "kmsg"

_ERROR_LEVEL = 3
"""LOG_ERR of syslog."""
_USER_FACILITY = 1 << 3
"""LOG_USER of syslog: what a process writes into the kernel log."""


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


def append_record(root: Path, text: str, *, by_kernel: bool, age_seconds: float = 0.0) -> None:
    """Add one record of one line, stamped with this machine's monotonic clock ``age_seconds`` ago.

    Raises:
        SimulationError: ``root`` holds no simulated machine with a kernel log.
    """
    path = root / "dev" / KMSG
    if not path.is_file():
        raise SimulationError(f"{path} is not there: write a simulated node first")
    priority = _ERROR_LEVEL | (0 if by_kernel else _USER_FACILITY)
    microseconds = max(0, int((time.monotonic() - age_seconds) * 1e6))
    with exclusively(root), path.open("rb+") as log:
        sequence = log.read().count(b"\n")
        log.write(f"{priority},{sequence},{microseconds},-;{' '.join(text.split())}\n".encode())


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
