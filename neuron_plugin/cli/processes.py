"""Which processes have which device open, by /proc.

Compared by device number, not by path: inside a container the host's ``/dev/neuron5`` may be called ``/dev/neuron0``.
Other users' processes are seen by root only; a process that ends meanwhile is passed over.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

_Identity: TypeAlias = tuple[str, int, int]


class Process(msgspec.Struct, frozen=True):
    """A process as neuron-ls prints it; the runtime's version is the runtime's secret."""

    pid: int
    command: str
    neuron_runtime_version: str = ""


def device_processes(nodes: Sequence[Path], proc: Path = Path("/proc")) -> dict[Path, tuple[Process, ...]]:
    """The processes that have each of ``nodes`` open, by ascending pid; nodes that nobody has open are left out."""
    wanted = {identity: node for node in nodes if (identity := _identity(node)) is not None}
    found: dict[Path, list[Process]] = {}
    for process in sorted((entry for entry in _entries(proc) if entry.name.isdigit()), key=lambda path: int(path.name)):
        opened = {_identity(descriptor) for descriptor in _entries(process / "fd")}
        for identity in wanted.keys() & opened:
            found.setdefault(wanted[identity], []).append(Process(int(process.name), _command(process)))
    return {node: tuple(processes) for node, processes in found.items()}


def _entries(directory: Path) -> Iterator[Path]:
    try:
        yield from directory.iterdir()
    except OSError:
        return


def _identity(path: Path) -> _Identity | None:
    """What a path leads to; plain files stand for device nodes on a simulated machine."""
    try:
        status = path.stat()
    except OSError:
        return None
    if stat.S_ISCHR(status.st_mode):
        return "device", os.major(status.st_rdev), os.minor(status.st_rdev)
    return ("file", status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _command(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode("utf-8", "backslashreplace").strip()
