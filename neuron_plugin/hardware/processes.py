"""Processes that use devices (by /proc), and whether a pod still has a process (by cgroups).

Devices are compared by their numbers, not by path: inside a container the host's ``/dev/neuron5`` may be called
``/dev/neuron0``. Unreadable processes are reported. Without the host's PID namespace, or without the right to inspect
other users' processes (CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH), an empty answer means nothing.

An ended pod may still use its devices until its cgroup has no process left; even a process that has not opened a device
yet counts. To see that takes the host's ``/sys/fs/cgroup``, read-only, and no capability. The kubelet names a pod's
cgroup after its UID (``pkg/kubelet/cm``): ``kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice`` with the
systemd driver ("_" for "-"), ``kubepods/burstable/pod<uid>`` with cgroupfs, directly below ``kubepods`` for a
guaranteed pod.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

_POD_IN_PATH = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
"""A static pod's UID is a hash without dashes."""
_KUBEPODS = re.compile(r"(?:.*-)?kubepods(?:\.slice)?\Z")
_V1_CONTROLLERS = ("memory", "pids", "cpu", "devices", "systemd")
"""All have the same tree of pods; the first with such a tree is read."""

_FLAGS = re.compile(r"^flags:\s*([0-7]+)$", re.MULTILINE)
_MOST_BYTES = 65_536
"""Of one file of a process: it may be very long and written by others, such as a command line."""
_COMMAND_BYTES = 4096
"""Bytes of a command line."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has a device open.

    ``pod_uid`` is the UID in its cgroup's path, empty without one. ``uses``: it has a descriptor that is not
    write-only. A device opened write-only is only probed, which blocks no other user.
    """

    pid: int
    command: str
    pod_uid: str = ""
    uses: bool = True


def device_processes(
    nodes: Sequence[Path], proc: Path = Path("/proc"), denied: list[Path] | None = None
) -> dict[Path, tuple[Process, ...]]:
    """The processes that have each of ``nodes`` open, by ascending pid; unused nodes are left out.

    ``denied`` gets the directory of each process that may not be inspected. Costs some 10 µs for each open file of the
    machine: not for the event loop.
    """
    wanted = {identity_of(node): node for node in nodes}
    wanted.pop(None, None)
    users: dict[Path, list[Process]] = {}
    for process in sorted(
        (directory for directory in _directories(proc) if directory.name.isdigit()),
        key=lambda directory: int(directory.name),
    ):
        opened: dict[Path, list[str]] = {}
        try:
            for descriptor in (process / "fd").iterdir():
                try:
                    node = wanted.get(_identity(descriptor.stat()))
                except PermissionError:
                    raise
                except OSError:
                    continue  # just closed
                if node is not None:
                    opened.setdefault(node, []).append(descriptor.name)
        except PermissionError:  # descriptors may not be listed, or not be followed
            if denied is not None:
                denied.append(process)
        except OSError:
            pass  # just ended
        for node, descriptors in opened.items():
            named = _POD_IN_PATH.search(_text(process / "cgroup"))
            # The driver only looks at the lowest bit of the open flags (O_WRONLY); unreadable flags count as not
            # write-only.
            flags = [_FLAGS.search(_text(process / "fdinfo" / descriptor)) for descriptor in descriptors]
            user = Process(
                pid=int(process.name),
                command=_text(process / "cmdline", _COMMAND_BYTES).replace("\0", " ").strip(),
                pod_uid=named[1].replace("_", "-") if named else "",
                uses=any(not match or not int(match[1], 8) & os.O_WRONLY for match in flags),
            )
            users.setdefault(node, []).append(user)
    return {node: tuple(processes) for node, processes in users.items()}


def identity_of(path: Path) -> tuple[str, int, int] | None:
    """A value that is equal for two paths of one device; None if there is no device, or the path may not be followed.

    Plain files are device nodes on a simulated machine.
    """
    try:
        return _identity(path.stat())
    except OSError:
        return None


def has_kernel_threads(proc: Path) -> bool:
    """Whether ``proc`` shows the host's PID namespace: only there process 2 is ``kthreadd``."""
    return _text(proc / "2" / "comm").strip() == "kthreadd"


def is_populated(cgroup_root: Path, uid: str) -> bool | None:
    """Whether this pod still has a process; None if the cgroups of pods cannot be seen.

    ``cgroup_root`` is the host's ``/sys/fs/cgroup``, of either version; ``uid`` is as in the API. ``kubepods`` is the
    root's child or, with ``--cgroup-root`` or in kind (``/kubelet``), its grandchild. If a kubelet runs in a container,
    there are two. Takes less than a millisecond, however many pods there are.
    """
    unified = (cgroup_root / "cgroup.controllers").exists()
    for base in [cgroup_root] if unified else [cgroup_root / controller for controller in _V1_CONTROLLERS]:
        children = _directories(base)
        tops = [child for child in children if _KUBEPODS.match(child.name)]
        for child in children:
            if child not in tops:
                tops += [below for below in _directories(child) if _KUBEPODS.match(below.name)]
        if tops:
            break
    else:
        return None
    for top, quality in product(tops, ("", "burstable", "besteffort")):  # a pod has one QoS class
        pod = top / quality / f"pod{uid}"
        if top.suffix == ".slice":
            parent = top / f"{top.stem}-{quality}.slice" if quality else top
            pod = parent / f"{parent.stem}-pod{uid.replace('-', '_')}.slice"
        if unified:
            has_process = "populated 1" in _text(pod / "cgroup.events").splitlines()
        else:  # the cgroup is gone
            tasks = (Path(directory, name) for directory, _, _ in os.walk(pod) for name in ("cgroup.procs", "tasks"))
            has_process = any(_text(task, 1) for task in tasks)
        if has_process:
            return True
    return False


def _directories(path: Path) -> list[Path]:
    try:
        return [path / entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _identity(status: os.stat_result) -> tuple[str, int, int] | None:
    if stat.S_ISCHR(status.st_mode):
        return "device", os.major(status.st_rdev), os.minor(status.st_rdev)
    return ("file", status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _text(path: Path, most_bytes: int = _MOST_BYTES) -> str:
    try:
        with path.open("rb") as file:
            return file.read(most_bytes).decode("utf-8", "backslashreplace")
    except OSError:
        return ""
