"""Processes that use devices (by /proc), and pods that still have a process (by cgroups).

Devices are compared by their numbers, not by path: inside a container the host's ``/dev/neuron5`` may be called
``/dev/neuron0``. What cannot be seen is reported, not guessed. Without the host's PID namespace, or without the right
to look into other users' processes (CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH), an empty answer means nothing.

A pod that has ended may still use its devices until no process of its cgroup is left, also one that has not opened a
device yet. That takes the host's ``/sys/fs/cgroup``, read-only, and no capability. The kubelet names a pod's cgroup
after its UID (``pkg/kubelet/cm``): ``kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice`` with the systemd
driver ("_" for "-"), ``kubepods/burstable/pod<uid>`` with cgroupfs, directly below ``kubepods`` for a guaranteed pod.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Identity: TypeAlias = tuple[str, int, int]

_UID = r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
"""A static pod's UID is a hash without dashes."""
_POD_IN_PATH = re.compile(_UID)
_POD_DIRECTORY = re.compile(rf"(?:.*-)?{_UID}(?:\.slice)?\Z")
_KUBEPODS = re.compile(r"(?:.*-)?kubepods(?:\.slice)?\Z")
_QUALITIES = ("", "burstable", "besteffort")
_V1_CONTROLLERS = ("memory", "pids", "cpu", "devices", "systemd")
"""Each has the same tree of pods; the first that has one is read."""

_FLAGS = re.compile(r"^flags:\s*([0-7]+)$", re.MULTILINE)
_MOST_BYTES = 65_536
"""Of one file of a process: some are written by others and may be very long, as a command line may."""
_COMMAND_BYTES = 4096
_KERNEL_THREADS = "kthreadd"
"""Process 2 of a machine, and of no other PID namespace."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has a device open.

    ``pod_uid`` is the UID in its cgroup's path, empty where there is none. ``uses``: at least one of its descriptors is
    an ordinary one. A device opened write-only is only probed: such a descriptor blocks no other user.
    """

    pid: int
    command: str
    pod_uid: str = ""
    uses: bool = True


@dataclass(frozen=True, slots=True)
class Look:
    """The processes that have each node open; ``complete`` when no process of a pod can have been missed."""

    processes: Mapping[Path, tuple[Process, ...]]
    complete: bool


def look_at_processes(nodes: Sequence[Path], proc: Path, *, whole_machine: bool) -> Look:
    """One pass over ``proc``, some 10 µs for each open file of the machine: not for the event loop.

    ``whole_machine``: this /proc shows the processes of containers. The machine's own processes may be closed to a
    container whatever its rights (AppArmor), so only a closed process that may be a pod's makes the look incomplete.
    """
    denied: list[Path] = []
    processes = device_processes(nodes, proc, denied.append)
    cgroups = [_text(process / "cgroup") for process in denied]  # readable by every user
    return Look(processes, whole_machine and all(path and not _POD_IN_PATH.search(path) for path in cgroups))


def device_processes(
    nodes: Sequence[Path], proc: Path = Path("/proc"), on_denied: Callable[[Path], None] = lambda _path: None
) -> dict[Path, tuple[Process, ...]]:
    """The processes that have each of ``nodes`` open, by ascending pid; unused nodes are left out.

    ``on_denied`` gets the directory of each process that may not be looked into.
    """
    wanted = {identity: node for node in nodes if (identity := identity_of(node)) is not None}
    found: dict[Path, list[Process]] = {}
    for process in sorted(
        (entry for entry in _directories(proc) if entry.name.isdigit()), key=lambda path: int(path.name)
    ):
        opened: dict[Identity, list[Path]] = {}
        try:
            for descriptor in (process / "fd").iterdir():
                identity = _descriptor_identity(descriptor)
                if identity is not None and identity in wanted:
                    opened.setdefault(identity, []).append(descriptor)
        except PermissionError:
            on_denied(process)
        except OSError:
            pass  # the process has just ended
        for identity, descriptors in opened.items():
            found.setdefault(wanted[identity], []).append(_process(process, descriptors))
    return {node: tuple(processes) for node, processes in found.items()}


def identity_of(path: Path) -> Identity | None:
    """Equal for two paths of one device; None where there is none, or it may not be followed.

    Plain files are device nodes on a simulated machine.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return _identity(status)


def has_kernel_threads(proc: Path) -> bool:
    """Whether ``proc`` is that of a machine's own PID namespace, wherever it is mounted."""
    return _text(proc / "2" / "comm").strip() == _KERNEL_THREADS


def populated_pods(cgroup_root: Path) -> frozenset[str] | None:
    """UIDs of the pods that still have a process; None where the cgroups of pods cannot be seen.

    ``cgroup_root`` is the host's ``/sys/fs/cgroup``, of either version. UIDs are as in the API, with dashes; those of
    static pods have none. Costs a directory listing and one small file for each pod: not for the event loop.
    """
    tree = _PodTree.find(cgroup_root)
    if tree is None:
        return None
    directories = (tree.quality_directory(top, quality) for top in tree.tops for quality in _QUALITIES)
    return frozenset(
        match[1].replace("_", "-")
        for directory in directories
        for entry in _directories(directory)
        if (match := _POD_DIRECTORY.match(entry.name)) and tree.is_populated(entry)
    )


def is_populated(cgroup_root: Path, uid: str) -> bool | None:
    """Whether this pod still has a process; None where the cgroups of pods cannot be seen.

    Costs less than a millisecond, however many pods there are. Arguments as in ``populated_pods``.
    """
    tree = _PodTree.find(cgroup_root)
    if tree is None:
        return None
    return any(tree.is_populated(tree.pod_directory(top, quality, uid)) for top in tree.tops for quality in _QUALITIES)


@dataclass(frozen=True, slots=True)
class _PodTree:
    """Where the kubelet keeps pods: the ``kubepods`` directories, more than one where a kubelet runs in a container."""

    tops: Sequence[Path]
    unified: bool

    @classmethod
    def find(cls, root: Path) -> _PodTree | None:
        """The tree of cgroup v2, or of one controller of v1.

        ``kubepods`` is the root's child or, with ``--cgroup-root`` or in kind (``/kubelet``), its grandchild.
        """
        unified = (root / "cgroup.controllers").exists()
        for base in [root] if unified else [root / controller for controller in _V1_CONTROLLERS]:
            children = _directories(base)
            tops = [child for child in children if _KUBEPODS.match(child.name)]
            for child in children:
                if child not in tops:
                    tops += [below for below in _directories(child) if _KUBEPODS.match(below.name)]
            if tops:
                return cls(tops, unified)
        return None

    def quality_directory(self, top: Path, quality: str) -> Path:
        """The parent of all pods of one class of service; guaranteed pods are directly below ``kubepods``."""
        if not quality:
            return top
        if top.suffix == ".slice":
            return top / f"{top.stem}-{quality}.slice"
        return top / quality

    def pod_directory(self, top: Path, quality: str, uid: str) -> Path:
        """Where this pod's cgroup is, if the pod is of that class."""
        parent = self.quality_directory(top, quality)
        if parent.suffix == ".slice":
            return parent / f"{parent.stem}-pod{uid.replace('-', '_')}.slice"
        return parent / f"pod{uid}"

    def is_populated(self, pod: Path) -> bool:
        """Whether a process is left in this cgroup or below; a cgroup that is gone has none."""
        if self.unified:
            return "populated 1" in _text(pod / "cgroup.events").splitlines()
        return any(
            _text(Path(directory) / name, 1) for directory, _, files in os.walk(pod) for name in files if name in _TASKS
        )


_TASKS = frozenset({"cgroup.procs", "tasks"})


def _process(process: Path, descriptors: Sequence[Path]) -> Process:
    named = _POD_IN_PATH.search(_text(process / "cgroup"))
    # The driver looks at the lowest bit of the open flags alone (O_WRONLY); unreadable flags count as ordinary.
    flags = [_FLAGS.search(_text(process / "fdinfo" / descriptor.name)) for descriptor in descriptors]
    return Process(
        pid=int(process.name),
        command=_text(process / "cmdline", _COMMAND_BYTES).replace("\0", " ").strip(),
        pod_uid=named[1].replace("_", "-") if named else "",
        uses=any(not found or not int(found[1], 8) & os.O_WRONLY for found in flags),
    )


def _directories(path: Path) -> list[Path]:
    try:
        return [path / entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _descriptor_identity(descriptor: Path) -> Identity | None:
    try:
        return _identity(descriptor.stat())
    except PermissionError:
        raise  # the descriptors of its process may be listed and not followed
    except OSError:
        return None  # it has just been closed


def _identity(status: os.stat_result) -> Identity | None:
    if stat.S_ISCHR(status.st_mode):
        return "device", os.major(status.st_rdev), os.minor(status.st_rdev)
    return ("file", status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _text(path: Path, most_bytes: int = _MOST_BYTES) -> str:
    try:
        with path.open("rb") as file:
            return file.read(most_bytes).decode("utf-8", "backslashreplace")
    except OSError:
        return ""
