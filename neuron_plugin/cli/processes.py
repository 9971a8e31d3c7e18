"""Which processes have which device open, as neuron-ls prints it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from neuron_plugin.hardware import processes


class Process(msgspec.Struct, frozen=True):
    """A process as neuron-ls prints it; the runtime's version is the runtime's secret."""

    pid: int
    command: str
    neuron_runtime_version: str = ""


def device_processes(nodes: Sequence[Path], proc: Path = Path("/proc")) -> dict[Path, tuple[Process, ...]]:
    """The processes that have each of ``nodes`` open, by ascending pid; nodes that nobody has open are left out.

    Other users' processes are seen by root only; a process that ends meanwhile is passed over.
    """
    found = processes.device_processes(nodes, proc)
    return {node: tuple(Process(each.pid, each.command) for each in opened) for node, opened in found.items()}
