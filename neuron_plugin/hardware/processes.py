"""Which processes have which device open, by /proc.

Devices are compared by their numbers, not by path: inside a container the host's ``/dev/neuron5`` may be called
``/dev/neuron0``. What cannot be seen is said, not guessed: without the host's PID namespace, or without the right to
look into other users' processes (CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH), nobody having a device open means nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Identity: TypeAlias = tuple[str, int, int]

_POD_UID = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
"""In a cgroup's path; systemd's slices have "_" for "-", and a static pod's UID is a bare hash (pkg/kubelet/cm)."""
_FLAGS = re.compile(r"^flags:\s*([0-7]+)$", re.MULTILINE)
_MOST_BYTES = 65_536
"""Of one file of a process: some are written by others and may be very long, as a command line may."""
_COMMAND_BYTES = 4096
_KERNEL_THREADS = "kthreadd"
"""Process 2 of a machine, and of no other PID namespace."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has a device open.

    ``pod_uid`` is the UID its cgroup names, empty where it names none. ``uses``: at least one of its descriptors is an
    ordinary one. Opened write-only the driver gives a lane beside it, which probes use and which blocks nobody.
    """

    pid: int
    command: str
    pod_uid: str = ""
    uses: bool = True


@dataclass(frozen=True, slots=True)
class Look:
    """Who has which node open; ``complete`` when no process of a pod can have been missed."""

    processes: Mapping[Path, tuple[Process, ...]]
    complete: bool


def look_at_processes(nodes: Sequence[Path], proc: Path, *, is_whole_machine: Callable[[Path], bool]) -> Look:
    """One pass over ``proc``, some 10 µs for each open file of the machine: not for the event loop.

    ``is_whole_machine`` says whether this /proc shows the processes of containers at all. The machine's own processes
    may be closed to a container whatever its rights, as AppArmor has it.
    """
    denied: list[Path] = []
    processes = device_processes(nodes, proc, denied.append)
    return Look(processes, complete=not any(map(_may_be_of_a_pod, denied)) and is_whole_machine(proc))


def device_processes(
    nodes: Sequence[Path], proc: Path = Path("/proc"), on_denied: Callable[[Path], None] = lambda _path: None
) -> dict[Path, tuple[Process, ...]]:
    """The processes that have each of ``nodes`` open, by ascending pid; nodes that nobody has open are left out.

    ``on_denied`` is told of each process that may not be looked into.
    """
    wanted = {identity: node for node in nodes if (identity := identity_of(node)) is not None}
    found: dict[Path, list[Process]] = {}
    for process in sorted((entry for entry in _entries(proc) if entry.name.isdigit()), key=lambda path: int(path.name)):
        for identity, descriptors in _opened(process, wanted, on_denied).items():
            found.setdefault(wanted[identity], []).append(_process(process, descriptors))
    return {node: tuple(processes) for node, processes in found.items()}


def identity_of(path: Path) -> Identity | None:
    """What tells whether two paths lead to one device; None where there is none, or it may not be followed."""
    try:
        return _identity(path)
    except OSError:
        return None


def has_kernel_threads(proc: Path) -> bool:
    """Whether ``proc`` is that of a machine's own PID namespace, wherever it is mounted."""
    return _text(proc / "2" / "comm").strip() == _KERNEL_THREADS


def _opened(
    process: Path, wanted: Mapping[Identity, Path], on_denied: Callable[[Path], None]
) -> dict[Identity, list[Path]]:
    opened: dict[Identity, list[Path]] = {}
    try:
        for descriptor in (process / "fd").iterdir():
            identity = _descriptor_identity(descriptor)
            if identity is not None and identity in wanted:
                opened.setdefault(identity, []).append(descriptor)
    except PermissionError:
        on_denied(process)
    except OSError:
        pass  # it has just ended
    return opened


def _may_be_of_a_pod(process: Path) -> bool:
    """Everybody may read of which cgroup a process is."""
    cgroup = _text(process / "cgroup")
    return not cgroup or bool(_POD_UID.search(cgroup))


def _process(process: Path, descriptors: Sequence[Path]) -> Process:
    named = _POD_UID.search(_text(process / "cgroup"))
    return Process(
        pid=int(process.name),
        command=_text(process / "cmdline", _COMMAND_BYTES).replace("\0", " ").strip(),
        pod_uid=named[1].replace("_", "-") if named else "",
        uses=any(_is_ordinary(process, descriptor.name) for descriptor in descriptors),
    )


def _is_ordinary(process: Path, descriptor: str) -> bool:
    """The driver looks at the lowest bit of the open flags alone (``O_WRONLY``); not to be read counts as ordinary."""
    flags = _FLAGS.search(_text(process / "fdinfo" / descriptor))
    return not flags or not int(flags[1], 8) & os.O_WRONLY


def _entries(directory: Path) -> Iterator[Path]:
    try:
        yield from directory.iterdir()
    except OSError:
        return


def _descriptor_identity(descriptor: Path) -> Identity | None:
    try:
        return _identity(descriptor)
    except PermissionError:
        raise  # its process may be listed and not followed
    except OSError:
        return None  # it has just been closed


def _identity(path: Path) -> Identity | None:
    """What a path leads to; plain files stand for device nodes on a simulated machine."""
    status = path.stat()
    if stat.S_ISCHR(status.st_mode):
        return "device", os.major(status.st_rdev), os.minor(status.st_rdev)
    return ("file", status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _text(path: Path, most_bytes: int = _MOST_BYTES) -> str:
    try:
        with path.open("rb") as file:
            return file.read(most_bytes).decode("utf-8", "backslashreplace")
    except OSError:
        return ""
